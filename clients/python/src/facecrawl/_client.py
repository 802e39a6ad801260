"""The clients of the service."""
from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar, Unpack

import httpx

from facecrawl._operations import AsyncOperations, Operations
from facecrawl._streams import AsyncEvents, Events
from facecrawl._transport import DEFAULT_TIMEOUT, Settings
from facecrawl._types import AlertView, CrawlView, CreateCrawl, VideoView

Item = TypeVar("Item")
Progress = Callable[[Item], object]


class Client(Operations):
    """A client of a facecrawl service. It can be used by several threads.

    Args:
        base_url: The address of the service. The default is `FACECRAWL_URL`, else
            http://127.0.0.1:8080.
        key: An API key. The default is `FACECRAWL_KEY`. An empty text sends no key.
        timeout: The maximum number of seconds to connect, and between two parts of a response.
            The wait for one of the 100 connections of the client has no limit. An open stream uses
            a connection.
        retries: The maximum number of times that a request is repeated.
        max_wait: The maximum `Retry-After` in seconds. If it is longer, the request fails at once.
        http: An httpx client with your own settings, such as certificates. `close` does not close
            it.
    """

    def __init__(
        self,
        base_url: str | None = None,
        key: str | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        retries: int = 5,
        max_wait: float = 60.0,
        http: httpx.Client | None = None,
    ) -> None:
        self._settings = Settings(base_url, key, timeout, retries, max_wait)
        self._is_owner = http is None
        self._http = http or httpx.Client(**self._settings.http_options())

    @property
    def base_url(self) -> str:
        """The address of the service."""
        return str(self._settings.url)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._settings.url!r}>"

    def close(self) -> None:
        """Closes the connections."""
        if self._is_owner:
            self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def follow_alerts(
        self, *, collection: str | None = None, after: int | None = None
    ) -> Events[AlertView]:
        """Follows the alerts of a collection. If the connection ends, the client connects again and
        continues after the last alert.

        Args:
            collection: The collection; the default is the collection of the key, else `default`.
            after: The number of the last alert that the caller has. Without it, the stream begins
                with the alerts that are created after this call.
        """
        if after is None:
            # Otherwise alerts could be missed if the connection ends before the first one.
            newest = self.list_alerts(collection=collection, limit=1)["alerts"]
            after = newest[0]["sequence"] if newest else 0
        return super().follow_alerts(collection=collection, after=after)

    def crawl(
        self, *, on_progress: Progress[CrawlView] | None = None, **options: Unpack[CreateCrawl]
    ) -> CrawlView:
        """Starts a crawl, waits for its end and returns it.

        The crawl continues if this method is interrupted; `cancel_crawl` ends it.

        Args:
            on_progress: A function that is called with the crawl at the start and after each
                change.
            options: The arguments of `create_crawl`, at least `seeds`.
        """
        return self.wait_for_crawl(self.create_crawl(**options)["id"], on_progress=on_progress)

    def wait_for_crawl(
        self, id: str, *, on_progress: Progress[CrawlView] | None = None
    ) -> CrawlView:
        """Waits for the end of a crawl and returns it.

        Args:
            id: Id of the crawl.
            on_progress: A function that is called with the crawl at the start and after each
                change.
        """
        report(self.follow_crawl(id), on_progress)
        return self.get_crawl(id)

    def wait_for_video(
        self, id: str, *, on_progress: Progress[VideoView] | None = None
    ) -> VideoView:
        """Waits for the end of a video and returns it.

        Args:
            id: Id of the video.
            on_progress: A function that is called with the video at the start and after each
                change.
        """
        report(self.follow_video(id), on_progress)
        return self.get_video(id)


class AsyncClient(AsyncOperations):
    """An asynchronous client of a facecrawl service; see `Client`."""

    def __init__(
        self,
        base_url: str | None = None,
        key: str | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        retries: int = 5,
        max_wait: float = 60.0,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        self._settings = Settings(base_url, key, timeout, retries, max_wait)
        self._is_owner = http is None
        self._http = http or httpx.AsyncClient(**self._settings.http_options())

    @property
    def base_url(self) -> str:
        """The address of the service."""
        return str(self._settings.url)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._settings.url!r}>"

    async def aclose(self) -> None:
        """Closes the connections."""
        if self._is_owner:
            await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def follow_alerts(
        self, *, collection: str | None = None, after: int | None = None
    ) -> AsyncEvents[AlertView]:
        """Follows the alerts of a collection; see `Client.follow_alerts`."""
        if after is None:
            newest = (await self.list_alerts(collection=collection, limit=1))["alerts"]
            after = newest[0]["sequence"] if newest else 0
        return await super().follow_alerts(collection=collection, after=after)

    async def crawl(
        self, *, on_progress: Progress[CrawlView] | None = None, **options: Unpack[CreateCrawl]
    ) -> CrawlView:
        """Starts a crawl, waits for its end and returns it; see `Client.crawl`.

        `on_progress` can be a coroutine function.
        """
        crawl = await self.create_crawl(**options)
        return await self.wait_for_crawl(crawl["id"], on_progress=on_progress)

    async def wait_for_crawl(
        self, id: str, *, on_progress: Progress[CrawlView] | None = None
    ) -> CrawlView:
        """Waits for the end of a crawl and returns it; see `Client.wait_for_crawl`."""
        await async_report(await self.follow_crawl(id), on_progress)
        return await self.get_crawl(id)

    async def wait_for_video(
        self, id: str, *, on_progress: Progress[VideoView] | None = None
    ) -> VideoView:
        """Waits for the end of a video and returns it; see `Client.wait_for_video`."""
        await async_report(await self.follow_video(id), on_progress)
        return await self.get_video(id)


def report(events: Events[Item], on_progress: Progress[Item] | None) -> None:
    """Reads the events to their end."""
    with events:
        for event in events:
            if on_progress:
                on_progress(event.data)


async def async_report(events: AsyncEvents[Item], on_progress: Progress[Item] | None) -> None:
    """Reads the events to their end. Awaits the result of `on_progress` if it is awaitable."""
    async with events:
        async for event in events:
            result = on_progress(event.data) if on_progress else None
            if inspect.isawaitable(result):
                await result


# Both clients have the same operations. The generated code contains their full descriptions only in
# `Operations`, so they are copied here.
for _name, _method in vars(Operations).items():
    if not _name.startswith("_"):
        vars(AsyncOperations)[_name].__doc__ = _method.__doc__
