"""Tests of retries, streams and events against a scripted server, and of the asynchronous client."""
from __future__ import annotations

import asyncio
import concurrent.futures
import io
import itertools
import json
import threading
import time
import tracemalloc

import httpx
import numpy
import PIL.Image
import pytest
from conftest import problem, respond

import facecrawl


KINDS = pytest.mark.parametrize("kind", ["sync", "async"])


# ---- Connections and retries ----


def test_the_environment_selects_the_service(monkeypatch, scripted):
    seen = []

    def answer(request):
        seen.append(request.headers.get("authorization"))
        respond(request, 200, {"streams": []})

    monkeypatch.setenv("FACECRAWL_URL", scripted(answer).url)
    monkeypatch.setenv("FACECRAWL_KEY", "fc_secret")
    # A proxy does not receive requests to this machine.
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with facecrawl.Client() as client:
        client.list_streams()
        assert "secret" not in repr(client)
    with facecrawl.Client(key="") as client:
        client.list_streams()
    assert seen == ["Bearer fc_secret", None]


def test_addresses_are_checked():
    for url in ("127.0.0.1:8080", "ftp://example.org", "http://"):
        with pytest.raises(ValueError, match="is not the URL of a service"):
            facecrawl.Client(url)


def test_a_missing_service_is_explained():
    with facecrawl.Client("http://127.0.0.1:9", retries=1) as client:
        with pytest.raises(facecrawl.ConnectionFailed, match="facecrawl up"):
            client.list_faces()


def test_retry_after_is_respected(scripted, tmp_path):
    times, bodies = [], []

    def answer(request):
        times.append(time.monotonic())
        bodies.append(request.rfile.read(int(request.headers["content-length"])))
        if len(times) == 1:
            respond(request, 429, problem("overloaded", 429), retry_after="1")
        elif len(times) == 2:
            respond(request, 503, problem("database_unavailable", 503), retry_after="0")
        else:
            respond(request, 202, {"id": "v"})

    path = tmp_path / "film.mp4"
    path.write_bytes(b"film" * 100_000)
    with facecrawl.Client(scripted(answer).url) as client:
        assert client.create_video(path) == {"id": "v"}
    assert times[1] - times[0] >= 1
    assert bodies == [path.read_bytes()] * 3


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (429, {"retry_after": "61"}, 1),  # Longer than `max_wait`.
        (503, {}, 1),  # The outcome can be unknown.
        (500, {"retry_after": "0"}, 1),
        (429, {"retry_after": "0"}, 3),
        (429, {"retry_after": "soon"}, 1),
        (429, {"retry_after": "-1"}, 1),
    ],
)
def test_other_responses_are_not_repeated(scripted, status, headers, expected):
    seen = []

    def answer(request):
        seen.append(request.path)
        respond(request, status, problem("x", status), **headers)

    with facecrawl.Client(scripted(answer).url, retries=2) as client:
        with pytest.raises(facecrawl.Problem) as caught:
            client.list_faces()
    assert len(seen) == expected
    assert caught.value.retry_after == (float(headers["retry_after"]) if headers.get("retry_after", "x").isdecimal() else None)


class Pipe(io.RawIOBase):
    """A file that cannot be read again."""

    def __init__(self, content):
        self._file = io.BytesIO(content)

    def readable(self):
        return True

    def read(self, size=-1):
        return self._file.read(size)


def read_chunked(request):
    content = b""
    while size := int(request.rfile.readline(), 16):
        content += request.rfile.read(size)
        request.rfile.readline()
    request.rfile.readline()
    return content


def test_a_body_that_cannot_be_read_again_is_not_repeated(scripted):
    bodies = []

    def answer(request):
        assert request.headers["transfer-encoding"] == "chunked"
        bodies.append(read_chunked(request))
        respond(request, 429, problem("overloaded", 429), retry_after="0")

    with facecrawl.Client(scripted(answer).url) as client:
        with pytest.raises(facecrawl.Problem):
            client.create_video(Pipe(b"film"))
    assert bodies == [b"film"]


def test_a_file_object_is_sent_from_its_position(scripted):
    bodies = []

    def answer(request):
        bodies.append(request.rfile.read(int(request.headers["content-length"])))
        respond(request, *((429, problem("overloaded", 429)) if len(bodies) == 1 else (202, {"id": "v"})), retry_after="0")

    file = io.BytesIO(b"headfilm")
    file.seek(4)
    with facecrawl.Client(scripted(answer).url) as client:
        client.create_video(file)
    assert bodies == [b"film", b"film"]


@KINDS
def test_large_files_are_not_read_into_memory(scripted, tmp_path, kind):
    received = []

    def answer(request):
        size = int(request.headers["content-length"])
        while size:
            size -= len(request.rfile.read(min(size, 1 << 16)))
        received.append(request.path)
        respond(request, 202, {"id": "v"})

    path = tmp_path / "film.mp4"
    with open(path, "wb") as file:
        file.truncate(64 << 20)
    url = scripted(answer).url

    async def send():
        async with facecrawl.AsyncClient(url) as client:
            await client.create_video(path, sampling="fps=5")

    tracemalloc.start()
    if kind == "sync":
        facecrawl.Client(url).create_video(path, sampling="fps=5")
    else:
        asyncio.run(send())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert received == ["/videos?sampling=fps%3D5"] and peak < 16 << 20


def test_only_reads_are_repeated_after_a_connection_error(scripted):
    seen = []

    def answer(request):
        seen.append(request.command)
        if len(seen) < 3:
            request.close_connection = True  # Without a response.
        else:
            respond(request, 200, {"faces": []})

    with facecrawl.Client(scripted(answer).url) as client:
        assert client.list_faces() == {"faces": []}
        seen.clear()
        with pytest.raises(facecrawl.ConnectionFailed):
            client.create_subject(name="Ada")
    assert seen == ["POST"]


def test_responses_of_other_servers_are_explained(scripted):
    def answer(request):
        if request.path == "/faces":
            respond(request, 200, b"<html>", content_type="text/html")
        else:
            respond(request, 502, b"<html>", content_type="text/html", x_request_id="r7")

    with facecrawl.Client(scripted(answer).url) as client:
        with pytest.raises(facecrawl.Error, match="is not JSON"):
            client.list_faces()
        with pytest.raises(facecrawl.Problem) as caught:
            client.list_images()
    assert (caught.value.code, caught.value.request_id) == ("http_502", "r7")


def start_stream(request, content_type):
    request.send_response(200)
    request.send_header("content-type", content_type)
    request.send_header("transfer-encoding", "chunked")
    request.end_headers()


def send_chunk(request, content):
    request.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
    request.wfile.flush()


def test_only_line_feeds_separate_lines(scripted):
    # Some programs also treat these characters as ends of lines.
    expected = [{"alt": "a\u2028b\u0085c"}, {"alt": "é" * 70_000}, {"last": True}]
    text = "\n\n".join(json.dumps(line, ensure_ascii=False) for line in expected)

    def answer(request):
        start_stream(request, "application/x-ndjson")
        content = text.encode()
        for start in range(0, len(content), 999):
            send_chunk(request, content[start : start + 999])
        request.wfile.write(b"0\r\n\r\n")

    url = scripted(answer).url

    async def main():
        async with facecrawl.AsyncClient(url) as client:
            return [line async for line in await client.export_crawl("c")]

    with facecrawl.Client(url) as client:
        assert list(client.export_crawl("c")) == expected
    assert asyncio.run(main()) == expected


def test_an_aborted_export_is_an_error(scripted):
    def answer(request):
        start_stream(request, "application/x-ndjson")
        send_chunk(request, b'{"number": 1}\n{"num')
        request.close_connection = True

    with facecrawl.Client(scripted(answer).url) as client:
        lines = client.export_crawl("c")
        assert next(lines) == {"number": 1}
        with pytest.raises(facecrawl.ConnectionFailed, match="before the response was complete"):
            next(lines)


def follow_broken(request, seen):
    """Sends an event in two parts, breaks the connection, and continues after the last event."""
    last = request.headers.get("last-event-id")
    seen.append(last)
    if len(seen) == 2 or len(seen) > 4:
        respond(request, *((503, problem("not_ready", 503)) if len(seen) == 2 else (404, problem("not_found", 404))))
        return
    start_stream(request, "text/event-stream")
    if last is None:
        send_chunk(request, b': comment\n\nid: 7\nevent: alert\ndata: {"text": "\xe2')
        send_chunk(request, b'\x80\xa8"}\n\n:\n\nid: 8\nevent: al')
    else:
        send_chunk(request, b'id: 8\nevent: alert\ndata: {"text":\ndata: "b"}\n\nevent: done\ndata: {}\n\n')
    request.close_connection = True


def test_events_continue_after_the_last_one(scripted):
    seen = []
    with facecrawl.Client(scripted(lambda request: follow_broken(request, seen)).url) as client:
        events = list(client.follow_alerts(after=3))
    assert [(event.event, event.id, event.data) for event in events] == [
        ("alert", "7", {"text": "\u2028"}),
        ("alert", "8", {"text": "b"}),
        ("done", None, {}),
    ]
    assert seen == [None, "7", "7"]


def test_events_end_with_a_problem(scripted):
    seen = []

    def answer(request):
        seen.append(request.path)
        if len(seen) == 1:
            start_stream(request, "text/event-stream")
            request.close_connection = True
        else:
            respond(request, 404, problem("not_found", 404))

    with facecrawl.Client(scripted(answer).url) as client:
        with pytest.raises(facecrawl.Problem, match="not_found"):
            list(client.follow_crawl("c"))


@KINDS
def test_calls_that_wait_for_a_connection_have_no_time_limit(scripted, kind):
    def answer(request):
        time.sleep(0.4)
        # httpx restarts the limit of all waiting calls if the connection stays open.
        respond(request, 200, {"streams": []}, connection="close")

    url, limits = scripted(answer).url, httpx.Limits(max_connections=1)

    async def main():
        async with httpx.AsyncClient(limits=limits) as http:
            client = facecrawl.AsyncClient(url, timeout=1.0, http=http)
            return await asyncio.gather(*(client.list_streams() for _ in range(5)))

    if kind == "async":
        found = asyncio.run(main())
    else:
        with httpx.Client(limits=limits) as http, concurrent.futures.ThreadPoolExecutor() as pool:
            client = facecrawl.Client(url, timeout=1.0, http=http)
            found = list(pool.map(lambda _: client.list_streams(), range(5)))
    assert found == [{"streams": []}] * 5


def test_a_slow_response_has_a_time_limit(scripted):
    def answer(request):
        time.sleep(1)
        respond(request, 200, {"streams": []})

    with facecrawl.Client(scripted(answer).url, timeout=0.2) as client:
        with pytest.raises(facecrawl.ConnectionFailed, match="did not respond within 0.2 seconds"):
            client.list_streams()


# ---- Responses that are not from the service ----


def call(kind, url, method, *arguments, **options):
    """Calls a method of a client. Returns its result, or the items of a stream."""

    async def main():
        async with facecrawl.AsyncClient(url) as client:
            found = await getattr(client, method)(*arguments, **options)
            return [item async for item in found] if hasattr(found, "__aiter__") else found

    if kind == "async":
        return asyncio.run(main())
    with facecrawl.Client(url) as client:
        found = getattr(client, method)(*arguments, **options)
        return list(found) if hasattr(found, "__next__") else found


def login_page(request):
    respond(request, 200, b"<html>Sign in", content_type="text/html; charset=utf-8")


@KINDS
@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        ("follow_crawl", {}, "text/event-stream"),
        ("wait_for_crawl", {}, "text/event-stream"),
        ("wait_for_video", {}, "text/event-stream"),
        ("export_crawl", {}, "application/x-ndjson"),
        ("export_crawl", {"format": "csv"}, "text/csv"),
        ("get_image_thumbnail", {}, "image/"),
    ],
)
def test_a_login_page_is_not_read_as_another_type(scripted, kind, method, options, expected):
    url = scripted(login_page).url
    with pytest.raises(facecrawl.Error, match=f"text/html.*{expected}.*is this a facecrawl service"):
        call(kind, url, method, "id", **options)


@KINDS
def test_a_login_page_is_not_read_as_text_or_json(scripted, kind):
    url = scripted(login_page).url.replace("//", "//user:secret@")
    for method, message in {"get_metrics": "text/html.*text/plain", "list_faces": "is not JSON"}.items():
        with pytest.raises(facecrawl.Error, match=message) as caught:
            call(kind, url, method)
        assert "secret" not in str(caught.value)


@KINDS
def test_a_response_without_a_type_is_explained(scripted, kind):
    def answer(request):
        request.send_response(200)
        request.send_header("content-length", "0")
        request.end_headers()

    with pytest.raises(facecrawl.Error, match="has no content type"):
        call(kind, scripted(answer).url, "follow_crawl", "id")


@KINDS
@pytest.mark.parametrize("damage", [b"<html>", b'{"number": ', b'"\xff"'])
def test_a_damaged_export_is_explained(scripted, kind, damage):
    def answer(request):
        respond(request, 200, b'{"number": 1}\n' + damage, content_type="application/x-ndjson")

    with pytest.raises(facecrawl.Error, match="is not JSON"):
        call(kind, scripted(answer).url, "export_crawl", "id")


@KINDS
def test_a_damaged_event_is_explained(scripted, kind):
    def answer(request):
        respond(request, 200, b"event: progress\ndata: <html>\n\n", content_type="text/event-stream")

    with pytest.raises(facecrawl.Error, match="is not JSON"):
        call(kind, scripted(answer).url, "follow_crawl", "id")


# ---- The end of reconnection ----


@KINDS
def test_reconnection_ends_after_the_maximum_time(scripted, monkeypatch, kind):
    monkeypatch.setattr("facecrawl._streams.RECONNECT_SECONDS", 1.0)
    seen = []

    def answer(request):
        seen.append(request.path)
        respond(request, 200, b":\n\n", content_type="text/event-stream")

    with pytest.raises(facecrawl.ConnectionFailed, match="before the response was complete"):
        call(kind, scripted(answer).url, "wait_for_crawl", "c")
    assert 1 < len(seen) < 6


@KINDS
def test_reconnection_ends_if_the_service_stays_silent(scripted, monkeypatch, kind):
    monkeypatch.setattr("facecrawl._streams.RECONNECT_SECONDS", 1.0)
    monkeypatch.setattr("facecrawl._streams.LASTING_SECONDS", 0.1)
    monkeypatch.setattr("facecrawl._transport.EVENT_TIMEOUT", 0.2)
    ended = threading.Event()

    def answer(request):
        start_stream(request, "text/event-stream")
        assert ended.wait(20)
        request.close_connection = True

    with pytest.raises(facecrawl.ConnectionFailed, match="before the response was complete"):
        call(kind, scripted(answer).url, "follow_crawl", "c")
    ended.set()


@KINDS
def test_a_login_page_ends_reconnection(scripted, kind):
    seen = []

    def answer(request):
        seen.append(request.path)
        if len(seen) > 1:
            return login_page(request)
        respond(request, 200, b"event: progress\ndata: {}\n\n", content_type="text/event-stream")

    with pytest.raises(facecrawl.Error, match="text/html"):
        call(kind, scripted(answer).url, "wait_for_crawl", "c")
    assert len(seen) == 2


@KINDS
@pytest.mark.parametrize(("content", "seconds"), [(b"event: progress\ndata: {}\n\n", 0), (b":\n\n", 0.5)])
def test_a_connection_with_events_or_of_some_time_is_no_failure(scripted, monkeypatch, kind, content, seconds):
    monkeypatch.setattr("facecrawl._streams.RECONNECT_SECONDS", 0.5)
    monkeypatch.setattr("facecrawl._streams.LASTING_SECONDS", 0.4)
    seen = []

    def answer(request):
        seen.append(request.path)
        start_stream(request, "text/event-stream")
        send_chunk(request, content)
        time.sleep(seconds)
        if len(seen) == 3:
            send_chunk(request, b"event: done\ndata: {}\n\n")
        request.close_connection = True

    events = call(kind, scripted(answer).url, "follow_crawl", "c")
    assert len(seen) == 3 and events[-1].event == "done"


# ---- Asynchronous client ----


class Slow(io.BytesIO):
    """A file whose reader waits for `released`."""

    def __init__(self):
        super().__init__(b"image")
        self.released = threading.Event()

    def read(self, size=-1):
        assert self.released.wait(5)
        return super().read(size)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("detect_faces", lambda file: [file]),
        ("create_erasure", lambda file: [file]),
        ("enhance_image", lambda file: [file]),
        ("compare_faces", lambda file: [file, b"image"]),
        ("detect_faces_batch", lambda file: [[file]]),
    ],
)
def test_the_event_loop_runs_while_an_image_is_read(scripted, method, arguments):
    bodies = []

    def answer(request):
        bodies.append(request.rfile.read(int(request.headers["content-length"])))
        respond(request, 200, {}, content_type="image/png" if method == "enhance_image" else "application/json")

    async def main():
        file = Slow()
        async with facecrawl.AsyncClient(scripted(answer).url) as client:
            call = asyncio.create_task(getattr(client, method)(*arguments(file)))
            await asyncio.sleep(0.1)
            file.released.set()
            await call

    asyncio.run(main())
    assert len(bodies) == 1 and b"image" in bodies[0]


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_an_image_of_pillow_can_be_sent_by_several_calls_at_once(scripted, tmp_path, mode):
    bodies = []

    def answer(request):
        bodies.append(request.rfile.read(int(request.headers["content-length"])))
        respond(request, 200, {})

    path = tmp_path / "image.png"
    pixels = numpy.random.default_rng(1).integers(0, 255, (700, 700, len(mode)), "uint8")
    PIL.Image.fromarray(pixels).save(path)

    async def main():
        # Pillow reads the file at the first use.
        with PIL.Image.open(path) as image:
            async with facecrawl.AsyncClient(scripted(answer).url) as client:
                await asyncio.gather(*(client.detect_faces(image) for _ in range(8)))

    asyncio.run(main())
    assert len(bodies) == 8
    for body in bodies:
        assert numpy.array_equal(numpy.asarray(PIL.Image.open(io.BytesIO(body))), pixels[:, :, :3])


def test_the_async_client_does_the_same(service, site, portraits, crawled, png, scripted):
    seen = []
    broken = scripted(lambda request: follow_broken(request, seen)).url
    attempts = itertools.count()

    def busy(request):
        if next(attempts) == 0:
            respond(request, 429, problem("overloaded", 429), retry_after="0")
        else:
            respond(request, 200, {"streams": []})

    busy_url = scripted(busy).url

    async def main():
        progress = []

        async def report(crawl):
            await asyncio.sleep(0)
            progress.append(crawl["state"])

        async with facecrawl.AsyncClient(service.url) as client:
            await client.create_collection(name="async")
            crawl = await client.crawl(seeds=[f"{site}/"], collection="async", on_progress=report)
            assert crawl["state"] == progress[-1] == "completed"
            found = await asyncio.gather(*(client.search_faces(portrait, collection="async") for portrait in portraits))
            for number, search in enumerate(found):
                assert search["matches"][0]["sources"][0]["image_url"] == f"{site}/{number}.jpg"
            faces = [face async for face in client.iter_faces(collection="async", page_size=2)]
            assert len(faces) == crawl["counts"]["faces"]
            assert len([line async for line in await client.export_crawl(crawl["id"])]) == 6
            table = [part async for part in await client.export_crawl(crawl["id"], format="csv")]
            assert b"".join(table)
            forms = [png, PIL.Image.open(io.BytesIO(png)), numpy.asarray(PIL.Image.open(io.BytesIO(png)))]
            counts = [len((await client.detect_faces(form, embeddings=False))["faces"]) for form in forms]
            assert len(set(counts)) == 1 and counts[0] >= 10
            with pytest.raises(facecrawl.Problem, match="not_found"):
                await client.get_collection("nothing")
            async with await client.follow_crawl(crawl["id"]) as events:
                assert [event.event async for event in events] == ["done"]
            await client.delete_collection("async")
        async with facecrawl.AsyncClient(broken) as client:
            assert [event.id async for event in await client.follow_alerts(after=3)] == ["7", "8", None]
        async with facecrawl.AsyncClient(busy_url) as client:
            assert await client.list_streams() == {"streams": []}

    asyncio.run(main())
