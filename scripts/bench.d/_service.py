"""A service of ours on a data folder of its own, for as long as a `with` block lasts."""
import contextlib
import re
import signal
import subprocess
import sys
import time

from _build import environment

READY = re.compile(r"facecrawl is ready on (http://\S+)")


@contextlib.contextmanager
def service(release, data, **settings):
    """Gives the base URL, the process and the seconds from its start until it was ready."""
    own = environment(DATA_DIR=str(data), PORT="0", LOG_LEVEL="warn", **settings)
    started = time.monotonic()
    process = subprocess.Popen([release / "facecrawl", "up"], env=own, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        said = []
        for line in process.stderr:
            said.append(line)
            ready = READY.search(line)
            if ready:
                yield ready.group(1), process, time.monotonic() - started
                break
        else:
            sys.exit(f"bench: the service ended before it was ready:\n{''.join(said)}")
    finally:
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        process.wait()


def compact(models, scratch):
    """Settings of the compact pack, its files taken from the folder `models` into one of its own."""
    return {"MODELS_DIR": str(scratch / "models"), "FACE_MODEL_MIRROR": str(models), "MODEL_PACK": "compact"}


def resident_mb(pid):
    """Resident memory of the process alone, without the private Postgres."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return 0.0
