"""Sites on loopback that show portraits of people who do not exist."""
import contextlib
import http.server
import threading
import time


class Pages(http.server.BaseHTTPRequestHandler):
    """Serves files from memory, and `/more/N`, which links to `/more/N+1`, so that a crawl of these
    pages never ends."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):  # noqa: N802, the name is the library's
        if self.path in self.server.files:
            self.answer("image/jpeg" if self.path.endswith(".jpg") else "text/html", self.server.files[self.path])
        elif self.path.startswith("/more/"):
            number = int(self.path.removeprefix("/more/")) + 1
            self.answer("text/html", f'<a href="/more/{number}">more</a>'.encode())
        elif self.path == "/camera":
            self.film()
        else:
            self.answer("text/plain", b"nothing", 404)

    def film(self):
        """Sends the first picture again and again, like a camera, until the client leaves."""
        picture = next(content for path, content in self.server.files.items() if path.endswith(".jpg"))
        self.send_response(200)
        self.send_header("content-type", "multipart/x-mixed-replace; boundary=frame")
        self.send_header("connection", "close")
        self.end_headers()
        head = f"--frame\r\ncontent-type: image/jpeg\r\ncontent-length: {len(picture)}\r\n\r\n".encode()
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(head + picture + b"\r\n")
                time.sleep(0.2)

    def answer(self, content_type, body, status=200):
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Discards the log messages."""


@contextlib.contextmanager
def site(pages):
    """Yields the URL of the site without a trailing slash. `pages` maps paths to the images that
    they show."""
    files = {f"/{picture.name}": picture.read_bytes() for pictures in pages.values() for picture in pictures}
    for path, pictures in pages.items():
        files[path] = "".join(f'<img src="/{picture.name}" alt="{picture.stem}">' for picture in pictures).encode()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    server.files = files
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
