"""Requests to the service, independent of how they are sent."""
from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
import io
import json
import os
import stat
import urllib.parse
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Final, Protocol, Union

Time = Union[str, datetime.datetime]
"""A point in time: text in the form of RFC 3339, or a datetime with a time zone."""

CHUNK_BYTES = 1 << 18


class Unset(enum.Enum):
    """The type of `UNSET`."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET
"""The default of an argument of an update. It leaves the field unchanged. None removes the value of
the field."""


class Body(Protocol):
    """The body of a request.

    `can_repeat` states whether it can be sent more than once. The other methods return arguments of
    `build_request` of httpx.
    """

    @property
    def can_repeat(self) -> bool: ...

    def options(self) -> dict[str, Any]: ...

    def async_options(self) -> dict[str, Any]: ...


@dataclasses.dataclass(frozen=True)
class Request:
    """A request. Query parameters that are None are omitted."""

    method: str
    path: str
    query: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    body: Body | None = None
    headers: Mapping[str, str | None] = dataclasses.field(default_factory=dict)

    def options(self) -> dict[str, Any]:
        """Returns the arguments of `build_request` of httpx, without URL and body."""
        given = {name: value for name, value in self.query.items() if value is not None}
        headers = {name: value for name, value in self.headers.items() if value is not None}
        params = {name: as_text(value) for name, value in given.items()}
        return {"method": self.method, "params": params, "headers": headers}


def as_text(value: Any) -> str:
    """Returns the value of a query parameter as text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, datetime.datetime) else str(value)


def segment(value: str) -> str:
    """Returns a segment of a path, with reserved characters escaped.

    An empty segment, `.` and `..` are rejected, because they would select another operation.
    """
    text = str(value)
    if text in ("", ".", ".."):
        raise ValueError(f"{text!r} is not an id")
    return urllib.parse.quote(text, safe="")


@dataclasses.dataclass(frozen=True)
class Bytes:
    """A body in memory."""

    content: bytes
    content_type: str
    can_repeat: bool = True

    def options(self) -> dict[str, Any]:
        return {"content": self.content, "content_type": self.content_type}

    async_options = options


@dataclasses.dataclass(frozen=True)
class Parts:
    """A form with one file for each pair of a name and bytes."""

    parts: Sequence[tuple[str, bytes]]
    can_repeat: bool = True

    def options(self) -> dict[str, Any]:
        kind = "application/octet-stream"
        return {"files": [(name, (name, content, kind)) for name, content in self.parts]}

    async_options = options


def json_body(fields: Mapping[str, Any]) -> Bytes:
    """Returns a JSON body. Fields that are `UNSET` are omitted."""
    given = {name: value for name, value in fields.items() if value is not UNSET}
    text = json.dumps(given, default=_as_json, allow_nan=False)
    return Bytes(text.encode(), "application/json")


def given(**fields: Any) -> dict[str, Any]:
    """Returns the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def _as_json(value: Any) -> Any:
    """Converts a value of a type that JSON does not have."""
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)
    if hasattr(value, "tolist"):  # Arrays and numbers of numpy.
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be sent as JSON")


def is_binary_file(value: object) -> bool:
    """Returns whether the value is a file.

    Raises TypeError if it is a file in text mode.
    """
    if isinstance(value, io.TextIOBase):
        raise TypeError('the file is open in text mode; open it with open(path, "rb")')
    return callable(getattr(value, "read", None))


class File:
    """A body that is read from a file while it is sent.

    A path is opened for each attempt. A file object is sent from its current position. It can be
    sent again if it can seek.
    """

    def __init__(self, source: str | os.PathLike[str] | BinaryIO, content_type: str) -> None:
        self.content_type = content_type
        self.size: int | None
        self._source = source
        if isinstance(source, (str, os.PathLike)):
            found = os.stat(source)
            self.can_repeat = stat.S_ISREG(found.st_mode)
            self.size = found.st_size if self.can_repeat else None
            return
        self.can_repeat = bool(getattr(source, "seekable", bool)())
        self._start = source.tell() if self.can_repeat else 0
        self.size = source.seek(0, os.SEEK_END) - self._start if self.can_repeat else None

    def _open(self) -> BinaryIO:
        if isinstance(self._source, (str, os.PathLike)):
            return open(self._source, "rb")
        if self.can_repeat:
            self._source.seek(self._start)
        return self._source

    def _close(self, file: BinaryIO) -> None:
        if file is not self._source:
            file.close()

    def _with(self, content: Iterator[bytes] | AsyncIterator[bytes]) -> dict[str, Any]:
        length = {} if self.size is None else {"content_length": str(self.size)}
        return {"content": content, "content_type": self.content_type, **length}

    def options(self) -> dict[str, Any]:
        return self._with(self._chunks())

    def async_options(self) -> dict[str, Any]:
        return self._with(self._async_chunks())

    def _chunks(self) -> Iterator[bytes]:
        file = self._open()
        try:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
        finally:
            self._close(file)

    async def _async_chunks(self) -> AsyncIterator[bytes]:
        file = await asyncio.to_thread(self._open)
        try:
            while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                yield chunk
        finally:
            self._close(file)
