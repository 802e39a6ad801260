"""A service of ours on an empty data folder, for as long as a `with` block lasts."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
READY = re.compile(r"facecrawl is ready on (http://\S+)")
# Every port of the world is closed but the discard port: what is asked for by a public address never leaves this machine.
SETTINGS = {"CRAWL_ALLOW_PRIVATE": "127.0.0.0/8", "CRAWL_PORTS": "9", "WORKERS": "2", "LOG_LEVEL": "warn", "PORT": "0", "WEBHOOK_SECRET": "only this run knows it"}
SCOPES = ["read", "analyze", "search", "crawl", "write", "erase", "admin", "system"]
# What the service needs of this process's environment; nobody's own settings come in.
INHERITED = ("PATH", "HOME", "LANG", "TMPDIR", "ORT_DYLIB_PATH", "POSTGRES_BIN_DIR", "FACE_MODEL_MIRROR")


class Service:
    """Where it answers, and a way to run its commands on the same data."""

    def __init__(self, binary, environment, process, base):
        self.binary, self.environment, self.process, self.base = binary, environment, process, base

    def command(self, *arguments):
        """The JSON that a command answers."""
        done = subprocess.run([self.binary, *arguments, "--json"], env=self.environment, check=True, capture_output=True, text=True)
        return json.loads(done.stdout)

    def key(self):
        """A key to everything."""
        return self.command("keys", "create", "--all", "--name", "fuzz-api", "--scope", ",".join(SCOPES))["key"]


@contextlib.contextmanager
def service(binary, folder, auth):
    """Runs `facecrawl up`; its log goes to `service.log` in the folder. That it does not end well is a failure."""
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    environment = inherited | SETTINGS | {"FACECRAWL_ROOT": str(ROOT), "DATA_DIR": str(folder / "data"), "AUTH": auth}
    log = folder / "service.log"
    process = subprocess.Popen([binary, "up"], cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    with open(log, "w", encoding="utf-8") as sink:
        copy = threading.Thread(target=shutil.copyfileobj, args=(process.stderr, sink))
        try:
            for line in process.stderr:
                sink.write(line)
                if ready := READY.search(line):
                    break
            else:
                sink.flush()
                sys.exit(f"fuzz-api: the service ended before it was ready:\n{log.read_text()}")
            copy.start()
            yield Service(binary, environment, process, ready.group(1))
        finally:
            process.terminate()
            status = process.wait()
            if copy.ident:
                copy.join()
    if status != 0:
        sys.exit(f"fuzz-api: the service ended with {status}; see {log}")
