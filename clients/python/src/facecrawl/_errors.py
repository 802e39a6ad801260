"""The exceptions of the client."""
from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx


class Error(Exception):
    """The base of all exceptions of this package.

    It is raised itself if a response does not come from the service, for example from a proxy with
    a page to sign in.
    """


class ConnectionFailed(Error):
    """The service cannot be reached, or the connection ended before the response was complete."""


class StartFailed(Error):
    """The program that `facecrawl.local` started did not become ready."""


class Problem(Error):
    """An error response of the service.

    Attributes:
        status: The HTTP status.
        code: The stable code of the error, such as `not_found`. It is `http_STATUS` if the response
            does not come from the service, but for example from a proxy.
        detail: A sentence for users.
        request_id: The id of the request, which is also in the log of the service; empty if the
            response has none.
        document: The whole problem document. See `facecrawl.types.Problem`.
        retry_after: The number of seconds to wait before the next attempt; None if the service does
            not state it.
    """

    def __init__(
        self, status: int, document: Mapping[str, Any], retry_after: float | None = None
    ) -> None:
        super().__init__(status, document, retry_after)
        self.status = status
        self.document = dict(document)
        self.code = str(document.get("code", f"http_{status}"))
        self.detail = str(document.get("detail", ""))
        self.request_id = str(document.get("request_id", ""))
        self.retry_after = retry_after

    def __str__(self) -> str:
        request = f" (request {self.request_id})" if self.request_id else ""
        return f"{self.code}: {self.detail}{request}"

    @classmethod
    def from_response(cls, response: httpx.Response) -> Problem:
        """Reads a response with an error status. Its body must have been read."""
        try:
            document = json.loads(response.content)
        except ValueError:
            document = None
        if not isinstance(document, dict) or "code" not in document:
            document = {
                "detail": f"{response.status_code} {response.reason_phrase}, not from the service",
                "request_id": response.headers.get("x-request-id", ""),
            }
        return cls(response.status_code, document, retry_after(response))


def retry_after(response: httpx.Response) -> float | None:
    """Returns the number of seconds in `Retry-After`, or None without a valid number."""
    text = response.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdecimal() else None
