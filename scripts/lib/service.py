"""A `facecrawl up` of one's own, for as long as a `with` block lasts."""
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
    """Where it answers, its process, and the seconds from its start until it was ready."""

    base: str
    process: subprocess.Popen
    seconds: float
    binary: pathlib.Path
    options: dict

    def command(self, *arguments):
        """The JSON that a command answers, on the same data."""
        done = subprocess.run([self.binary, *arguments, "--json"], check=True, capture_output=True, text=True, **self.options)
        return json.loads(done.stdout)


@contextlib.contextmanager
def running(binary, environment, folder):
    """Gives a `Service` that runs in `folder` with exactly `environment`; its log goes to `service.log` there. That it does not end well is a failure."""
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
                sys.exit(f"service: it ended before it was ready:\n{log.read_text(encoding='utf-8')}")
            seconds = time.monotonic() - started
            # Nobody else reads the pipe, and a full one would hold the service up.
            copy.start()
            yield Service(ready.group(1), process, seconds, binary, options)
        finally:
            process.terminate()
            status = process.wait()
            if copy.ident:
                copy.join()
    if status != 0:
        sys.exit(f"service: it ended with {status}; see {log}")
