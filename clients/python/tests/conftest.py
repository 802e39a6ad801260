"""The service under test, a site that it crawls, and a server that plays a script.

The tests need `FACECRAWL_PROGRAM`. Parts of the installation that the environment does not name are
those of the checkout.
"""
from __future__ import annotations

import http.server
import io
import json
import os
import pathlib
import sys
import threading
from collections.abc import Callable, Iterator

import PIL.Image
import pytest

import facecrawl
from facecrawl.types import CrawlView

ROOT = pathlib.Path(__file__).resolve().parents[3]
# The screenshot of the web page shows drawn people.
SCREENSHOT = ROOT / "docs/screenshots/detect.png"
PARTS = {
    "FACE_MODEL_MIRROR": "../shared/models",
    "FFMPEG": ".runtime/ffmpeg/ffmpeg",
    "ORT_DYLIB_PATH": ".runtime/onnxruntime/libonnxruntime.*",
    "POSTGRES_BIN_DIR": ".runtime/postgres/bin",
}
SETTINGS = {"CRAWL_ALLOW_PRIVATE": "127.0.0.0/8", "CRAWL_DELAY_MS": 0, "WORKERS": 2}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Turns a skipped test into a failure."""
    report = yield
    if report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped: {report.longrepr}"
    return report


@pytest.fixture(scope="session", autouse=True)
def installation(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ.setdefault("MODELS_DIR", str(tmp_path_factory.mktemp("models")))
    for name, pattern in PARTS.items():
        if found := next(ROOT.glob(pattern), None):
            os.environ.setdefault(name, str(found))


class Server(http.server.ThreadingHTTPServer):
    """A server on loopback. `answer` writes the response to a request."""

    daemon_threads = True

    def __init__(self, answer: Callable[[http.server.BaseHTTPRequestHandler], None]) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do(self) -> None:
                answer(self)

            do_GET = do_POST = do_PATCH = do_DELETE = do

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def handle_error(self, request: object, client_address: object) -> None:
        # Clients close connections on purpose.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


def respond(request: http.server.BaseHTTPRequestHandler, status: int, body: object = None, **headers: str) -> None:
    """Sends a response. A body that is not bytes is sent as JSON."""
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    request.send_response(status)
    for name, value in {"content_type": "application/json", **headers}.items():
        request.send_header(name.replace("_", "-"), value)
    request.send_header("content-length", str(len(content)))
    request.end_headers()
    request.wfile.write(content)


def problem(code: str, status: int) -> dict[str, object]:
    """Returns a problem document."""
    return {"type": "urn", "title": "x", "status": status, "code": code, "detail": "a detail", "request_id": "r1"}


@pytest.fixture(scope="session")
def service() -> Iterator[facecrawl.LocalService]:
    local = facecrawl.local(settings=SETTINGS)
    with local:
        yield local


@pytest.fixture
def client(service: facecrawl.LocalService) -> Iterator[facecrawl.Client]:
    with facecrawl.Client(service.url) as client:
        yield client


@pytest.fixture(scope="session")
def portraits(service: facecrawl.LocalService, tmp_path_factory: pytest.TempPathFactory) -> list[pathlib.Path]:
    """Returns portraits of the people in the screenshot, largest first."""
    folder = tmp_path_factory.mktemp("portraits")
    with facecrawl.Client(service.url) as client:
        faces = client.detect_faces(SCREENSHOT)["faces"]
    image = PIL.Image.open(SCREENSHOT).convert("RGB")
    faces.sort(key=lambda face: -face["bbox"]["width"])
    paths = []
    for number, face in enumerate(faces[:6]):
        box = face["bbox"]
        margin = box["width"] / 2
        corners = (box["x"] - margin, box["y"] - margin, box["x"] + box["width"] + margin, box["y"] + box["height"] + margin)
        portrait = image.crop(tuple(map(int, corners))).resize((400, 500))
        path = folder / f"{number}.jpg"
        portrait.save(path, quality=95)
        paths.append(path)
    return paths


@pytest.fixture(scope="session")
def site(portraits: list[pathlib.Path]) -> Iterator[str]:
    """Returns the address of a site with two pages, which show all portraits."""
    files = {f"/{path.name}": path.read_bytes() for path in portraits}
    images = [f'<img src="{name}">' for name in files]
    files["/"] = ("".join(images[:3]) + '<a href="/team.html">team</a>').encode()
    files["/team.html"] = "".join(images[3:]).encode()

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        content_type = "image/jpeg" if request.path.endswith(".jpg") else "text/html; charset=utf-8"
        found = files.get(request.path)
        respond(request, 200 if found else 404, found or b"", content_type=content_type)

    with Server(answer) as server:
        yield server.url


@pytest.fixture(scope="session")
def crawled(service: facecrawl.LocalService, site: str) -> tuple[CrawlView, list[CrawlView]]:
    """Returns a finished crawl of the site, and its states in progress."""
    progress: list[CrawlView] = []
    with facecrawl.Client(service.url) as client:
        crawl = client.crawl(seeds=[f"{site}/"], dedupe="exact", on_progress=progress.append)
    return crawl, progress


@pytest.fixture
def scripted() -> Iterator[Callable[..., Server]]:
    """Starts servers whose responses the test determines."""
    servers = []

    def start(answer: Callable[[http.server.BaseHTTPRequestHandler], None]) -> Server:
        servers.append(Server(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.__exit__()


@pytest.fixture(scope="session")
def png() -> bytes:
    """Returns the screenshot as RGB, so that all forms of the image have the same pixels."""
    buffer = io.BytesIO()
    PIL.Image.open(SCREENSHOT).convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()
