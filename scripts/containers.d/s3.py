"""Runs an S3 server on port 5000 that keeps its data when it is killed and started again.

moto keeps its data in memory. This program records each request in a file. At its start, it repeats
the recorded requests before a caller can reach it.
"""
import os
import pathlib
import threading

FILE = pathlib.Path("/recording")
os.environ.update(MOTO_ENABLE_RECORDING="true", MOTO_RECORDER_FILEPATH=str(FILE))

# moto reads these variables when it is imported.
from moto.moto_api import recorder
from moto.server import ThreadedMotoServer, main

lock, record = threading.Lock(), recorder._record_request


def record_alone(*arguments):
    """Prevents threads from mixing their lines."""
    with lock:
        record(*arguments)


recorder._record_request = record_alone
if FILE.exists():
    # The server may have been killed while it wrote the last line. That request has no response.
    FILE.write_text("".join(line for line in FILE.read_text().splitlines(keepends=True) if line.endswith("\n")))
    server = ThreadedMotoServer("127.0.0.1", 5001)
    server.start()
    recorder.replay_recording("http://127.0.0.1:5001")
    server.stop()
main(["--host", "0.0.0.0", "--port", "5000"])
