"""Responses that are read while the service sends them: lines of JSON, files and events."""
from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

import httpx

from facecrawl._errors import ConnectionFailed, Error, Problem
from facecrawl._requests import Request

T = TypeVar("T")
S = TypeVar("S", bound="Stream[Any]")
A = TypeVar("A", bound="AsyncStream[Any]")

# Time without an event and without a lasting connection after which `Events` fails. A restart of
# the service takes less time.
RECONNECT_SECONDS = 120.0
LONGEST_WAIT = 10.0
# A connection that lasted this long does not count as a failure when it ends. A proxy may close a
# connection without events after some time.
LASTING_SECONDS = 10.0


@dataclasses.dataclass(frozen=True)
class Event(Generic[T]):
    """A server-sent event.

    Attributes:
        event: Its name, such as `progress`, `done` or `alert`.
        data: Its JSON.
        id: Its id; None if it has none.
    """

    event: str
    data: T
    id: str | None = None


class Lines:
    """Splits bytes into lines.

    Only line feeds separate lines. The method `iter_lines` of httpx would also split at characters
    such as U+2028, which text from web pages can contain.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the complete lines."""
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._parts, lines[0]])
            self._parts = []
        self._parts.append(rest)
        return [line.rstrip(b"\r") for line in lines]

    def end(self) -> list[bytes]:
        """Returns the last line, if no line feed follows it."""
        return self.feed(b"\n")


def parsed(text: str | bytes) -> Any:
    """Returns the value of JSON text.

    Raises `Error` if the text is something else. Its beginning is then part of the message.
    """
    try:
        return json.loads(text)
    except ValueError:
        message = f"a line of the response is not JSON: {text[:60]!r}; is this a facecrawl service?"
        raise Error(message) from None


class JsonLines:
    """Reads lines of JSON."""

    def __init__(self) -> None:
        self._lines = Lines()

    def feed(self, chunk: bytes) -> list[dict[str, Any]]:
        return [parsed(line) for line in self._lines.feed(chunk) if line]

    def end(self) -> list[dict[str, Any]]:
        return [parsed(line) for line in self._lines.end() if line]


class Chunks:
    """Returns the bytes unchanged."""

    def feed(self, chunk: bytes) -> list[bytes]:
        return [chunk]

    def end(self) -> list[bytes]:
        return []


class Follower:
    """Reads events, and decides whether and when to connect again."""

    def __init__(self, request: Request) -> None:
        self.is_done = False
        self._request = request
        self._lines = Lines()
        self._fields: dict[str, str] = {}
        self._failures = 0
        self._deadline = 0.0
        self._connected_at = time.monotonic()

    def feed(self, chunk: bytes) -> list[Event[Any]]:
        """Returns the complete events. The event `done` ends the stream and sets `is_done`."""
        events = []
        for line in self._lines.feed(chunk):
            name, _, value = line.decode(errors="replace").partition(":")
            value = value.removeprefix(" ")
            if not line:
                events += self._finish_event()
            elif name == "data" and "data" in self._fields:
                self._fields["data"] += "\n" + value
            else:
                # A comment is a line without a name.
                self._fields[name] = value
        return events

    def _finish_event(self) -> list[Event[Any]]:
        fields, self._fields = self._fields, {}
        if "data" not in fields:
            return []
        event = Event(fields.get("event", "message"), parsed(fields["data"]), fields.get("id"))
        if event.id is not None:
            headers = {**self._request.headers, "last-event-id": event.id}
            self._request = dataclasses.replace(self._request, headers=headers)
        self.is_done = event.event == "done"
        self._failures = 0
        return [event]

    def reconnect(self) -> Request:
        """Returns the request for the events after the last one."""
        self._lines, self._fields = Lines(), {}
        return self._request

    def connected(self) -> None:
        self._connected_at = time.monotonic()

    def disconnected(self, failure: httpx.TransportError | None) -> None:
        # The service sends something every few seconds, so a connection that was silent has failed.
        is_silent = isinstance(failure, httpx.ReadTimeout)
        if not is_silent and time.monotonic() - self._connected_at >= LASTING_SECONDS:
            self._failures = 0

    def wait(self, error: Error) -> float:
        """Returns the seconds to wait before the next attempt to connect.

        `error` is that of the last attempt, or the end of the connection. Raises it if a further
        attempt would be useless.
        """
        is_unavailable = isinstance(error, Problem) and error.status in (502, 503, 504)
        if not is_unavailable and not isinstance(error, ConnectionFailed):
            raise error
        if self._failures == 0:
            self._deadline = time.monotonic() + RECONNECT_SECONDS
        elif time.monotonic() > self._deadline:
            raise error
        self._failures += 1
        return float(min(2 ** (self._failures - 1), LONGEST_WAIT))


def ended_early(error: httpx.TransportError | None = None) -> ConnectionFailed:
    """Returns the error for a connection that ended; without `error`, the server closed it."""
    reason = (str(error) or type(error).__name__) if error else "the server closed it"
    return ConnectionFailed(f"the connection ended before the response was complete: {reason}")


class Stream(Generic[T]):
    """An iterator over a response. It closes the connection at its end.

    A caller that does not read it to the end closes it with `close` or a `with` block.
    """

    def __init__(self, response: httpx.Response, reader: Any) -> None:
        self._response = response
        self._items = self._read(reader)

    def _read(self, reader: Any) -> Generator[T, None, None]:
        try:
            for chunk in self._response.iter_bytes():
                yield from reader.feed(chunk)
            yield from reader.end()
        except httpx.TransportError as error:
            raise ended_early(error) from error
        finally:
            self._response.close()

    def __iter__(self: S) -> S:
        return self

    def __next__(self) -> T:
        return next(self._items)

    def close(self) -> None:
        """Closes the connection."""
        self._items.close()
        self._response.close()

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Events(Stream[Event[T]]):
    """Events of the service. If the connection ends, the client connects again, and sends the id of
    the last event. The service then continues after this event."""

    def __init__(
        self,
        response: httpx.Response,
        request: Request,
        send: Callable[[Request], httpx.Response],
    ) -> None:
        self._send = send
        super().__init__(response, Follower(request))

    def _read(self, reader: Follower) -> Generator[Event[T], None, None]:
        while True:
            try:
                for chunk in self._response.iter_bytes():
                    yield from reader.feed(chunk)
                    if reader.is_done:
                        return
                failure = None
            except httpx.TransportError as raised:
                failure = raised
            finally:
                self._response.close()
            error: Error = ended_early(failure)
            reader.disconnected(failure)
            while True:
                time.sleep(reader.wait(error))
                try:
                    self._response = self._send(reader.reconnect())
                except Error as refused:
                    error = refused
                else:
                    break
            reader.connected()


class AsyncStream(Generic[T]):
    """An asynchronous iterator over a response. It closes the connection at its end.

    A caller that does not read it to the end closes it with `aclose` or an `async with` block.
    """

    def __init__(self, response: httpx.Response, reader: Any) -> None:
        self._response = response
        self._items = self._read(reader)

    async def _read(self, reader: Any) -> AsyncGenerator[T, None]:
        try:
            async for chunk in self._response.aiter_bytes():
                for item in reader.feed(chunk):
                    yield item
            for item in reader.end():
                yield item
        except httpx.TransportError as error:
            raise ended_early(error) from error
        finally:
            await self._response.aclose()

    def __aiter__(self: A) -> A:
        return self

    async def __anext__(self) -> T:
        return await self._items.__anext__()

    async def aclose(self) -> None:
        """Closes the connection."""
        await self._items.aclose()
        await self._response.aclose()

    async def __aenter__(self: A) -> A:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class AsyncEvents(AsyncStream[Event[T]]):
    """Events of the service; see `Events`."""

    def __init__(
        self,
        response: httpx.Response,
        request: Request,
        send: Callable[[Request], Awaitable[httpx.Response]],
    ) -> None:
        self._send = send
        super().__init__(response, Follower(request))

    async def _read(self, reader: Follower) -> AsyncGenerator[Event[T], None]:
        while True:
            try:
                async for chunk in self._response.aiter_bytes():
                    for event in reader.feed(chunk):
                        yield event
                    if reader.is_done:
                        return
                failure = None
            except httpx.TransportError as raised:
                failure = raised
            finally:
                await self._response.aclose()
            error: Error = ended_early(failure)
            reader.disconnected(failure)
            while True:
                await asyncio.sleep(reader.wait(error))
                try:
                    self._response = await self._send(reader.reconnect())
                except Error as refused:
                    error = refused
                else:
                    break
            reader.connected()
