"""Runs services of docker-compose.yml with one of the two programs that read it."""
import contextlib
import datetime
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request

from _engine import docker, run

PROJECT = "facecrawl-test"
# The label of containers that are not part of a compose project.
LABEL = "facecrawl.test"
# Ports of this machine that are rarely used.
PORTS = {"PORT": "18080", "GPU_PORT": "18081", "PROMETHEUS_PORT": "18082"}
BASE, GPU_BASE, PROMETHEUS_BASE = (f"http://127.0.0.1:{port}" for port in PORTS.values())
# Containers are reached directly, not through a proxy of the environment.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def programs(further):
    """Returns the command of each installed version of Compose, with those at the paths `further`."""
    candidates = [["docker", "compose"], ["docker-compose"], *([path] for path in further)]
    found = {}
    for command in candidates:
        if shutil.which(command[0]) and subprocess.run([*command, "version"], capture_output=True).returncode == 0:
            version = subprocess.run([*command, "version", "--short"], capture_output=True, text=True).stdout.strip()
            found.setdefault(version, command)
    return found


def environment():
    """Returns the environment of Compose, without variables that would override `.env`."""
    return {name: value for name, value in os.environ.items() if name in ("PATH", "HOME") or name.startswith("DOCKER_")}


class Compose:
    """A project of containers in a checkout, with a `.env` that contains `settings`."""

    project = PROJECT

    def __init__(self, command, checkout, *overrides, **settings):
        files = [f"--file={checkout / name}" for name in ("docker-compose.yml", *overrides)]
        self.command = [*command, f"--project-name={self.project}", *files]
        self.checkout = checkout
        lines = {**PORTS, **settings}.items()
        (checkout / ".env").write_text("".join(f"{name}={value}\n" for name, value in lines))

    def __call__(self, *arguments):
        return run(*self.command, *arguments, cwd=self.checkout, env=environment(), stderr=subprocess.STDOUT)

    def output_of_failure(self, *arguments):
        """Returns the output of a command that fails, or `None` if it succeeds."""
        done = subprocess.run([*self.command, *arguments], cwd=self.checkout, env=environment(), capture_output=True, text=True)
        return done.stdout + done.stderr if done.returncode else None

    @contextlib.contextmanager
    def up(self, *services):
        """Runs the services for the duration of a `with` block, then removes their containers and
        volumes. Yields the seconds that `up` took."""
        # An earlier run may have been killed.
        left = docker("ps", "--all", "--quiet", f"--filter=label={LABEL}").split()
        if left:
            docker("rm", "--force", "--volumes", *left)
        self.down()
        began = time.monotonic()
        try:
            self("up", "--detach", *services)
            yield time.monotonic() - began
        finally:
            self.down()

    def down(self):
        # Without their profiles, `down` does not stop backend-gpu and Prometheus.
        self("--profile=gpu", "--profile=monitoring", "down", "--volumes", "--remove-orphans", "--timeout=40")

    def containers(self, service=None):
        """Returns the IDs of the running containers."""
        of = [f"--filter=label=com.docker.compose.service={service}"] if service else []
        return docker("ps", "--quiet", "--no-trunc", f"--filter=label=com.docker.compose.project={self.project}", *of).split()

    def running(self):
        """Returns the services that run."""
        return sorted({inspect(one)["Config"]["Labels"]["com.docker.compose.service"] for one in self.containers()})


def inspect(container):
    return json.loads(docker("inspect", container))[0]


def wait_healthy(container, seconds=90):
    """Waits until a container is healthy. Returns the seconds from its start to the end of the first
    successful check."""
    until = time.monotonic() + seconds
    while (state := inspect(container)["State"])["Health"]["Status"] != "healthy":
        if time.monotonic() > until or not state["Running"]:
            raise SystemExit(f"containers: {container[:12]} is {state['Status']} and not healthy:\n{docker('logs', '--tail=30', container, stderr=subprocess.STDOUT)}")
        time.sleep(0.2)
    first = next(check for check in state["Health"]["Log"] if check["ExitCode"] == 0)
    return timestamp(first["End"]) - timestamp(state["StartedAt"])


def timestamp(text):
    """Parses a time of the engine, which has nanoseconds."""
    head, _, rest = text.partition(".")
    digits = "".join(character for character in rest if character.isdigit())[:6] if rest.endswith("Z") else rest[:6]
    zone = "+00:00" if text.endswith("Z") else text[-6:]
    return datetime.datetime.fromisoformat(f"{head}.{digits:0<6}{zone}").timestamp()


def call(url, body=None, kind="application/json"):
    """Sends a request and returns its JSON response. A failure ends the script."""
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    request = urllib.request.Request(url, data, {"content-type": kind} if data else {})
    try:
        with OPENER.open(request, timeout=60) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise SystemExit(f"containers: {url} answered {error.code}: {error.read().decode(errors='replace')}") from error
