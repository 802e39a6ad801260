"""The processes of scripts/test-dashboard: Postgres, the API, workers and Prometheus."""
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
MONITORING = ROOT / "docs/monitoring"
# A proxy in the environment of the caller must not receive requests to loopback.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
# Variables that the processes inherit from this script.
INHERITED = ("PATH", "HOME", "LANG", "TMPDIR", "ORT_DYLIB_PATH", "POSTGRES_BIN_DIR", "FACE_MODEL_MIRROR", "MODELS_DIR")
# Detection requests a GPU. Without one, the start counts a fallback.
SETTINGS = {
    "CRAWL_ALLOW_PRIVATE": "127.0.0.0/8", "CRAWL_PORTS": "9", "CRAWL_DELAY_MS": "0", "WORKERS": "2", "PORT": "0", "MAX_PENDING_IMAGES": "2",
    "DRAIN_SECONDS": "1", "FACE_DETECTION_GPU": "true", "WEBHOOK_SECRET": "only this run knows it", "SUPPRESSION_SECRET": "only this run knows this secret too",
}


def say(text):
    print(f"dashboard: {text}", flush=True)


def fail(reason):
    raise SystemExit(f"dashboard: {reason}")


def wait_for(what, condition, seconds=120):
    """Repeats `condition` until its value is true, and returns this value."""
    until = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > until:
            fail(f"{what}: not within {seconds} s")
        time.sleep(0.2)
    return value


def request(url, body=None, kind="application/json", timeout=60):
    """Sends a request. Returns status and body of the response; status 0 means no response."""
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    try:
        with OPENER.open(urllib.request.Request(url, data, {"content-type": kind} if data is not None else {}), timeout=timeout) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError:
        return 0, b""


def call(url, body=None, kind="application/json"):
    """Sends a request that must succeed, and returns its JSON response."""
    status, text = request(url, body, kind)
    if not 200 <= status < 300:
        fail(f"{url} answered {status}: {text.decode(errors='replace')}")
    return json.loads(text)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment():
    """Returns the variables of the processes, without the settings of the user."""
    found = {"FACE_MODEL_MIRROR": "../shared/models", "POSTGRES_BIN_DIR": ".runtime/postgres/bin", "ORT_DYLIB_PATH": ".runtime/onnxruntime/libonnxruntime.*"}
    places = {name: next(ROOT.glob(pattern), None) for name, pattern in found.items()}
    defaults = {"MODELS_DIR": str(ROOT / "models")} | {name: str(place) for name, place in places.items() if place}
    return defaults | {name: os.environ[name] for name in INHERITED if name in os.environ}


@contextlib.contextmanager
def started(log, *command, **options):
    """Yields a process whose output is written to `log`, and ends it. A suspended process ends too."""
    with open(log, "ab") as sink:
        process = subprocess.Popen([str(part) for part in command], stdout=sink, stderr=sink, **options)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.send_signal(signal.SIGCONT)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
            process.wait()


@contextlib.contextmanager
def postgres(with_postgres):
    """Yields the URL and the path of the socket of an empty database."""
    command = [with_postgres, "--", "sh", "-c", 'echo "$TEST_DATABASE_URL"; exec cat']
    server = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())
    try:
        url = server.stdout.readline().strip()
        if not url:
            fail("Postgres does not start")
        yield url, pathlib.Path(urllib.parse.unquote(url.split("host=")[1])) / ".s.PGSQL.5432"
    finally:
        server.stdin.close()
        server.wait()


@contextlib.contextmanager
def facecrawl(binary, folder, name, database, **settings):
    """Yields a process of `facecrawl serve` or `facecrawl worker` and its base URL when it is ready."""
    port, log = free_port(), folder / f"{name}.log"
    variables = environment() | SETTINGS | {"DATA_DIR": str(folder / "data"), "DATABASE_URL": database} | settings
    command, variable = ("serve", "PORT") if name == "api" else ("worker", "WORKER_PORT")
    with started(log, binary, command, env=variables | {variable: str(port)}, cwd=folder) as process:
        base = f"http://127.0.0.1:{port}"
        try:
            wait_for(f"{name} is ready", lambda: process.poll() is not None or request(f"{base}/health/ready", timeout=5)[0] == 200)
        except SystemExit as error:
            fail(f"{error}\n{log.read_text()[-3000:]}")
        if process.poll() is not None:
            fail(f"{name} has ended:\n{log.read_text()[-3000:]}")
        yield process, base


def prometheus_config(folder, api, workers):
    """Writes the configuration of the repository with the address `api`, the file `workers` of the
    addresses of workers, and short intervals."""
    found = [f"static_configs:\n      - targets: [{json.dumps(api)}]\n", f"file_sd_configs:\n      - files: [{json.dumps(str(workers))}]\n        refresh_interval: 1s\n"]
    text = (MONITORING / "prometheus.yml").read_text()
    text = re.sub(r"(scrape_interval|evaluation_interval): 15s", r"\1: 1s", text).replace("/etc/prometheus/", f"{MONITORING}/")
    jobs = iter(found)
    text, count = re.subn(r"dns_sd_configs:\n(?:      .*\n)+", lambda _: next(jobs), text)
    if count != len(found):
        fail(f"prometheus.yml has {count} jobs, and this script knows {len(found)}")
    path = folder / "prometheus.yml"
    path.write_text(text)
    return path


def tool(*arguments):
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        fail(f"promtool {arguments[0]} {arguments[1]}:\n{done.stdout}{done.stderr}")
    say(f"promtool {arguments[0]} {arguments[1]} {arguments[2].name}: no error")
