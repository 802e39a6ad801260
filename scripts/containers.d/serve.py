"""Serves a folder on port 8000. Prints a line for each request: its time in milliseconds, and the
time until which no further request may come.

`serve.py FOLDER SECONDS`: if SECONDS is not 0, the second image that a client requests is answered
with status 429 and this `Retry-After`.
"""
import collections
import functools
import http.server
import sys
import time

PAUSE_S = int(sys.argv[2])
IMAGES = collections.Counter()


class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        now = 1000 * time.monotonic()
        if self.path.endswith(".jpg"):
            IMAGES[self.client_address[0]] += 1
        if PAUSE_S and self.path.endswith(".jpg") and IMAGES[self.client_address[0]] == 2:
            self.send_response(429)
            self.send_header("retry-after", str(PAUSE_S))
            self.send_header("content-length", "0")
            self.end_headers()
            # The pause begins when the client has received the answer.
            print(f"{now:.1f} {1000 * (time.monotonic() + PAUSE_S):.1f} {self.path}", flush=True)
            return
        print(f"{now:.1f} 0 {self.path}", flush=True)
        super().do_GET()

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("", 8000), functools.partial(Handler, directory=sys.argv[1])).serve_forever()
