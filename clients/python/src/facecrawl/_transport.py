"""Sends requests with httpx: keys, retries and errors. `_operations` is generated on top of it."""
from __future__ import annotations

import asyncio
import ipaddress
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx

from facecrawl._errors import ConnectionFailed, Error, Problem
from facecrawl._requests import Request
from facecrawl._streams import (
    AsyncEvents,
    AsyncStream,
    Chunks,
    Events,
    JsonLines,
    Stream,
)

DEFAULT_URL = "http://127.0.0.1:8080"
# By default, the service ends a request after 60 seconds with a problem document
# (REQUEST_TIMEOUT_SECONDS).
DEFAULT_TIMEOUT = 90.0
# The service sends a comment every 15 seconds to callers that follow events.
EVENT_TIMEOUT = 60.0
FIRST_WAIT = 0.25


class Settings:
    """The settings that both clients share."""

    def __init__(
        self,
        base_url: str | None,
        key: str | None,
        timeout: float,
        retries: int,
        max_wait: float,
    ) -> None:
        base_url = base_url or os.environ.get("FACECRAWL_URL") or DEFAULT_URL
        self.url = httpx.URL(base_url.rstrip("/"))
        is_http = self.url.scheme in ("http", "https") and self.url.host
        if not is_http or self.url.query or self.url.fragment:
            raise ValueError(f"{base_url!r} is not the URL of a service, such as {DEFAULT_URL}")
        key = os.environ.get("FACECRAWL_KEY") if key is None else key
        self.headers = {"user-agent": "facecrawl-python", "accept": "*/*"}
        if key:
            self.headers["authorization"] = f"Bearer {key}"
        self.timeout, self.retries, self.max_wait = timeout, retries, max_wait

    def http_options(self) -> dict[str, Any]:
        """Returns the arguments of the client of httpx."""
        # A proxy of the environment must not receive images for a service on this machine.
        return {"timeout": limit(self.timeout), "trust_env": not is_loopback(self.url.host)}

    def request_options(
        self, request: Request, body: dict[str, Any], timeout: float | None
    ) -> dict[str, Any]:
        """Returns the arguments of `build_request` of httpx."""
        options = request.options()
        headers = {**self.headers, **options["headers"]}
        for name in ("content_type", "content_length"):
            if name in body:
                headers[name.replace("_", "-")] = body.pop(name)
        url = str(self.url) + request.path
        timeouts = limit(timeout or self.timeout)
        return {**options, **body, "headers": headers, "url": url, "timeout": timeouts}


def limit(seconds: float) -> httpx.Timeout:
    """Returns the time limits of a request.

    The wait for a free connection has no limit, because it depends on how many calls the caller
    makes at once, not on the service.
    """
    return httpx.Timeout(seconds, pool=None)


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Attempts:
    """Decides whether a request is sent again.

    A request is repeated after a response 429 or 503 with the header `Retry-After`. The
    service sends this header only if the request changed nothing. Requests with other methods than
    GET are not repeated after a connection error, because they may have been processed.
    """

    def __init__(self, settings: Settings, request: Request) -> None:
        self._settings, self._request = settings, request
        self._count = 0

    def _is_last(self) -> bool:
        self._count += 1
        can_repeat = self._request.body is None or self._request.body.can_repeat
        return self._count > self._settings.retries or not can_repeat

    def wait_after_response(self, response: httpx.Response) -> float:
        """Returns the seconds to wait. Raises `Problem` if the request is not repeated."""
        problem = Problem.from_response(response)
        wait = problem.retry_after
        if problem.status not in (429, 503) or wait is None or wait > self._settings.max_wait:
            raise problem
        if self._is_last():
            raise problem
        return wait

    def wait_after_error(self, error: httpx.TransportError) -> float:
        """Returns the seconds to wait. Raises `ConnectionFailed` if the request is not repeated."""
        is_temporary = isinstance(error, (httpx.NetworkError, httpx.RemoteProtocolError))
        if self._request.method != "GET" or not is_temporary or self._is_last():
            raise self._failure(error) from error
        return FIRST_WAIT * 2.0 ** (self._count - 1)

    def _failure(self, error: httpx.TransportError) -> ConnectionFailed:
        # The address can contain a password.
        url = self._settings.url.copy_with(userinfo=b"")
        reason = str(error) or type(error).__name__
        if isinstance(error, httpx.ConnectError):
            hint = "start the service with `facecrawl up`, or set FACECRAWL_URL"
            return ConnectionFailed(f"cannot connect to {url}: {reason}; {hint}")
        if isinstance(error, httpx.TimeoutException):
            seconds = f"{self._settings.timeout:g}"
            return ConnectionFailed(f"{url} did not respond within {seconds} seconds")
        return ConnectionFailed(f"no response from {url}: {reason}")


def json_of(response: httpx.Response) -> Any:
    """Returns the JSON of a response, or None if the response has no body."""
    if not response.content:
        return None
    try:
        return response.json()
    except ValueError:
        raise not_from_service(response, "is not JSON") from None


def check_type(response: httpx.Response, expected: str) -> None:
    """Raises `Error` if the content type does not begin with `expected`.

    Another server then sent the response, such as a proxy with a page to sign in.
    """
    found = response.headers.get("content-type")
    if not found:
        raise not_from_service(response, f"has no content type; expected: {expected}")
    if not found.lower().startswith(expected):
        raise not_from_service(response, f"has the content type {found}; expected: {expected}")


def not_from_service(response: httpx.Response, reason: str) -> Error:
    # The address can contain a password.
    url = response.url.copy_with(userinfo=b"")
    return Error(f"the response of {url} {reason}; is this a facecrawl service?")


class Transport:
    """Sends requests."""

    _settings: Settings
    _http: httpx.Client

    def _send(
        self, request: Request, stream: bool = False, timeout: float | None = None
    ) -> httpx.Response:
        attempts = Attempts(self._settings, request)
        while True:
            body = request.body.options() if request.body else {}
            try:
                options = self._settings.request_options(request, body, timeout)
                built = self._http.build_request(**options)
                response = self._http.send(built, stream=True)
                if not stream or not response.is_success:
                    response.read()
            except httpx.TransportError as error:
                wait = attempts.wait_after_error(error)
            else:
                if response.is_success:
                    return response
                wait = attempts.wait_after_response(response)
            time.sleep(wait)

    def _open(
        self, request: Request, expected: str, timeout: float | None = None
    ) -> httpx.Response:
        """Returns a response whose body is not read yet."""
        response = self._send(request, stream=True, timeout=timeout)
        try:
            check_type(response, expected)
        except Error:
            response.close()
            raise
        return response

    def _read(self, request: Request, expected: str) -> httpx.Response:
        """Returns a response whose body is read."""
        response = self._send(request)
        check_type(response, expected)
        return response

    def _json(self, request: Request) -> Any:
        return json_of(self._send(request))

    def _bytes(self, request: Request) -> bytes:
        return self._read(request, "image/").content

    def _text(self, request: Request) -> str:
        return self._read(request, "text/plain").text

    def _lines(self, request: Request) -> Stream[dict[str, Any]]:
        return Stream(self._open(request, "application/x-ndjson"), JsonLines())

    def _chunks(self, request: Request) -> Stream[bytes]:
        return Stream(self._open(request, "text/csv"), Chunks())

    def _events(self, request: Request) -> Events[Any]:
        def connect(again: Request) -> httpx.Response:
            return self._open(again, "text/event-stream", EVENT_TIMEOUT)

        return Events(connect(request), request, connect)

    def _pages(
        self, items: str, fetch: Callable[..., Any], *path: str, **query: Any
    ) -> Iterator[Any]:
        cursor = None
        while True:
            page = fetch(*path, cursor=cursor, **query)
            yield from page[items]
            cursor = page.get("next_cursor")
            if cursor is None:
                return


class AsyncTransport:
    """Sends requests asynchronously; see `Transport`."""

    _settings: Settings
    _http: httpx.AsyncClient

    async def _send(
        self, request: Request, stream: bool = False, timeout: float | None = None
    ) -> httpx.Response:
        attempts = Attempts(self._settings, request)
        while True:
            body = request.body.async_options() if request.body else {}
            try:
                options = self._settings.request_options(request, body, timeout)
                built = self._http.build_request(**options)
                response = await self._http.send(built, stream=True)
                if not stream or not response.is_success:
                    await response.aread()
            except httpx.TransportError as error:
                wait = attempts.wait_after_error(error)
            else:
                if response.is_success:
                    return response
                wait = attempts.wait_after_response(response)
            await asyncio.sleep(wait)

    async def _open(
        self, request: Request, expected: str, timeout: float | None = None
    ) -> httpx.Response:
        """Returns a response whose body is not read yet."""
        response = await self._send(request, stream=True, timeout=timeout)
        try:
            check_type(response, expected)
        except Error:
            await response.aclose()
            raise
        return response

    async def _read(self, request: Request, expected: str) -> httpx.Response:
        """Returns a response whose body is read."""
        response = await self._send(request)
        check_type(response, expected)
        return response

    async def _json(self, request: Request) -> Any:
        return json_of(await self._send(request))

    async def _bytes(self, request: Request) -> bytes:
        return (await self._read(request, "image/")).content

    async def _text(self, request: Request) -> str:
        return (await self._read(request, "text/plain")).text

    async def _lines(self, request: Request) -> AsyncStream[dict[str, Any]]:
        return AsyncStream(await self._open(request, "application/x-ndjson"), JsonLines())

    async def _chunks(self, request: Request) -> AsyncStream[bytes]:
        return AsyncStream(await self._open(request, "text/csv"), Chunks())

    async def _events(self, request: Request) -> AsyncEvents[Any]:
        async def connect(again: Request) -> httpx.Response:
            return await self._open(again, "text/event-stream", EVENT_TIMEOUT)

        return AsyncEvents(await connect(request), request, connect)

    async def _pages(
        self, items: str, fetch: Callable[..., Any], *path: str, **query: Any
    ) -> AsyncIterator[Any]:
        cursor = None
        while True:
            page = await fetch(*path, cursor=cursor, **query)
            for item in page[items]:
                yield item
            cursor = page.get("next_cursor")
            if cursor is None:
                return
