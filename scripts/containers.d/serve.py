"""Serves a folder on port 8000 and prints the time of each request, in seconds."""
import functools
import http.server
import sys
import time


class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        print(f"{time.monotonic():.4f} {self.path}", flush=True)
        super().do_GET()

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("", 8000), functools.partial(Handler, directory=sys.argv[1])).serve_forever()
