"""A site on loopback for the crawls of scripts/test-dashboard."""
import contextlib
import hashlib
import http.server
import threading


class Pages(http.server.BaseHTTPRequestHandler):
    """Serves files from memory with entity tags, and accepts webhook messages. `/busy.jpg` responds
    with 503 once. `/held.jpg` responds only after `release` is set."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):  # noqa: N802, the name is the library's
        site = self.server
        if self.path == "/busy.jpg" and not site.was_busy:
            site.was_busy = True
            return self.answer(503, b"later", "text/plain")
        if self.path == "/held.jpg":
            site.held_requests += 1
            site.release.wait()
        kind, body = site.files.get(self.path, ("text/plain", None))
        if body is None:
            return self.answer(404, b"nothing", "text/plain")
        tag = f'"{hashlib.sha256(body).hexdigest()}"'
        if self.headers.get("if-none-match") == tag:
            return self.answer(304, b"", kind, tag)
        return self.answer(200, body, kind, tag)

    def do_POST(self):  # noqa: N802, the name is the library's
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.answer(200, b"", "text/plain")

    def answer(self, status, body, kind, tag=None):
        try:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            if tag:
                self.send_header("etag", tag)
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:
            # The test killed the worker that had sent the request.
            self.close_connection = True

    def log_message(self, *_):
        """Discards the log messages."""


@contextlib.contextmanager
def site(portraits):
    """Yields the server. `portraits` maps file names to JPEG files. The first page links to
    several pages of one directory, to a file that is not an image, and to a missing image."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    server.daemon_threads = True
    server.was_busy, server.held_requests, server.release = False, 0, threading.Event()
    server.url = f"http://127.0.0.1:{server.server_port}"
    images = "".join(f'<img src="/{name}">' for name in [*portraits, "busy.jpg", "text.jpg", "missing.jpg"])
    one = next(iter(portraits.values()))
    server.files = {f"/{name}": ("image/jpeg", body) for name, body in portraits.items()}
    server.files |= {"/busy.jpg": ("image/jpeg", one + b"busy"), "/held.jpg": ("image/jpeg", one + b"held"), "/text.jpg": ("image/jpeg", b"text")}
    links = "".join(f'<a href="/list/{number}">page</a>' for number in range(4))
    server.files |= {f"/list/{number}": ("text/html", b"page") for number in range(4)}
    server.files["/"] = ("text/html", f"{links}{images}".encode())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.release.set()
        server.shutdown()
