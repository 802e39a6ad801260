"""Runs a separate `facecrawl up` for the duration of a `with` block."""
import contextlib
import dataclasses
import json
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time

READY = re.compile(r"facecrawl is ready on (http://\S+)")


@dataclasses.dataclass(frozen=True)
class Service:
    """A running service: its base URL, its process, and the seconds from its start until it was
    ready."""

    base: str
    process: subprocess.Popen
    seconds: float
    binary: pathlib.Path
    options: dict

    def command(self, *arguments):
        """Returns the JSON output of a command that uses the same data."""
        done = subprocess.run([self.binary, *arguments, "--json"], check=True, capture_output=True, text=True, **self.options)
        return json.loads(done.stdout)


@contextlib.contextmanager
def running(binary, environment, folder):
    """Yields a `Service` that runs in `folder` with exactly `environment`. The log of the service
    is written to `service.log` in that folder. An exit status other than 0 is a failure."""
    log, options = folder / "service.log", {"env": environment, "cwd": folder}
    started = time.monotonic()
    process = subprocess.Popen([binary, "up"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options)
    with open(log, "w", encoding="utf-8") as sink:
        copy = threading.Thread(target=shutil.copyfileobj, args=(process.stderr, sink))
        try:
            for line in process.stderr:
                sink.write(line)
                if ready := READY.search(line):
                    break
            else:
                sink.flush()
                sys.exit(f"service: facecrawl exited before it was ready:\n{log.read_text(encoding='utf-8')}")
            seconds = time.monotonic() - started
            # This thread empties the pipe. A full pipe would block the service.
            copy.start()
            yield Service(ready.group(1), process, seconds, binary, options)
        finally:
            process.terminate()
            status = process.wait()
            if copy.ident:
                copy.join()
    if status != 0:
        sys.exit(f"service: facecrawl exited with status {status}; see {log}")
