"""Code that mypy checks and that is never run: what the types accept, return and reject."""
from __future__ import annotations

import io
import pathlib
from collections.abc import AsyncIterator
from typing import Any, assert_type

import numpy
import PIL.Image

import facecrawl
from facecrawl.types import AlertView, CollectionView, CrawlView, DeletionPreview, StoredFace


def arguments(client: facecrawl.Client) -> None:
    with open("portrait.jpg", "rb") as file:
        client.detect_faces(file)
        client.create_video(file)
    client.detect_faces("portrait.jpg")
    client.detect_faces(pathlib.Path("portrait.jpg"))
    client.detect_faces(io.BytesIO())
    client.detect_faces(PIL.Image.new("RGB", (2, 2)))
    client.detect_faces(numpy.zeros((2, 2), "uint8"))
    client.detect_faces(7)  # type: ignore[arg-type]
    client.list_crawls(state="done")  # type: ignore[arg-type]
    client.crawl(seeds=[], max_pages=1, on_progress=lambda crawl: print(crawl["counts"]))
    client.crawl(seeds=[], max_page=1)  # type: ignore[call-arg]
    client.update_subject("id", name=None)
    client.create_collection(name=None)  # type: ignore[arg-type]


def results(client: facecrawl.Client) -> None:
    assert_type(list(client.iter_faces()), list[StoredFace])
    assert_type(client.delete_face("id", dry_run=True), DeletionPreview)
    assert_type(client.update_collection("id", name="a"), CollectionView)
    assert_type(client.update_collection("id", name="a", dry_run=True), DeletionPreview)
    assert_type(client.export_crawl("id"), facecrawl.Stream[dict[str, Any]])
    assert_type(client.export_crawl("id", format="csv"), facecrawl.Stream[bytes])
    assert_type([event.data for event in client.follow_alerts()], list[AlertView])


async def report(crawl: CrawlView) -> None:
    print(crawl["counts"]["faces"])


async def asynchronous(client: facecrawl.AsyncClient) -> None:
    assert_type(client.iter_faces(), AsyncIterator[StoredFace])
    assert_type(await client.delete_face("id", dry_run=True), DeletionPreview)
    assert_type(await client.export_crawl("id"), facecrawl.AsyncStream[dict[str, Any]])
    await client.crawl(seeds=[], on_progress=report)
