"""Injects faults of connections, hosts and disks into a crawl.

Each fault has its own containers: three workers, the API, Postgres, an S3 server and a site. A
fault begins when an eighth of the images are processed. (The shifted clock applies to the whole
run.) A caller reads the crawl from the API all the time. At the end, every image must be stored
exactly once and its thumbnail must be readable, and the site must not have received a request
within its delay or within a pause that it asked for.
"""
import collections.abc
import contextlib
import http.client
import json
import pathlib
import shutil
import subprocess
import threading
import time
import typing
import urllib.request

from _checks import require, start_crawl, stored_images
from _compose import BASE, OPENER, PROJECT, Compose, call, inspect, wait_healthy
from _engine import docker, run, say

HERE = pathlib.Path(__file__).parent
DELAY_MS = 200
# The site asks each worker for such a pause in the runs that concern clocks.
PAUSE_S = 3
# The site records a request when its thread starts, so the measured time can be slightly too short.
TOLERANCE_MS = 10
# Megabytes of the small disk of Postgres.
DISK_MB = 400


class Hosts:
    """The containers of one run, and the folder that is the small disk of Postgres, if it has one."""

    def __init__(self, compose, disk):
        self.compose, self.disk = compose, disk

    def one(self, service):
        return self.compose.containers(service)[0]

    def network(self, name):
        return f"{PROJECT}_{name}"

    @contextlib.contextmanager
    def cut(self, service, network):
        """Disconnects one container of the service from a network."""
        container, network = self.one(service), self.network(network)
        docker("network", "disconnect", network, container)
        yield
        docker("network", "connect", "--alias", service, network, container)

    @contextlib.contextmanager
    def paused(self, service):
        container = self.one(service)
        docker("pause", container)
        yield
        docker("unpause", container)

    @contextlib.contextmanager
    def killed(self, service):
        container = self.one(service)
        docker("kill", container)
        yield
        docker("start", container)

    @contextlib.contextmanager
    def full_disk(self, _):
        # The command ends with an error when the disk is full.
        subprocess.run(["dd", "if=/dev/zero", f"of={self.disk}/fill", "bs=64K"], stderr=subprocess.DEVNULL, check=False)
        free = shutil.disk_usage(self.disk).free
        require(free == 0, f"the disk of Postgres still has {free} bytes")
        yield
        run("rm", "-f", self.disk / "fill")

    @contextlib.contextmanager
    def restarted(self, service):
        docker("restart", self.one(service))
        yield

    @contextlib.contextmanager
    def nothing(self, _):
        yield

    @contextlib.contextmanager
    def shifted(self, service, seconds):
        ahead = int(docker("exec", self.one(service), "date", "+%s")) - time.time()
        require(abs(ahead - seconds) < 60, f"the clock of {service} is {ahead:.0f} s ahead instead of {seconds} s")
        yield


class Fault(typing.NamedTuple):
    name: str
    # Method of `Hosts`, its arguments, and the seconds until the fault is repaired.
    inject: collections.abc.Callable
    arguments: list
    seconds: int = 0
    # Difference of the shifted worker's clock. Empty: that worker does not run.
    clock: str = ""


FAULTS = [
    Fault("no fault", Hosts.nothing, ["worker"]),
    Fault("a worker cut from Postgres", Hosts.cut, ["worker", "db"], 20),
    Fault("the API cut from Postgres", Hosts.cut, ["backend", "db"], 20),
    Fault("everything cut from S3", Hosts.cut, ["s3", "blobs"], 20),
    Fault("a worker paused", Hosts.paused, ["worker"], 60),
    Fault("the S3 server paused", Hosts.paused, ["s3"], 20),
    Fault("pauses, but no fault", Hosts.nothing, ["worker"], clock="+0h"),
    Fault("a worker's clock an hour ahead", Hosts.shifted, ["shifted", 3600], clock="+1h"),
    Fault("a worker's clock an hour behind", Hosts.shifted, ["shifted", -3600], clock="-1h"),
    Fault("the disk of Postgres full", Hosts.full_disk, ["postgres"], 10),
    Fault("Postgres restarted", Hosts.restarted, ["postgres"]),
    Fault("a worker killed", Hosts.killed, ["worker"], 5),
    Fault("the API killed", Hosts.killed, ["backend"], 5),
    Fault("Postgres killed", Hosts.killed, ["postgres"], 5),
    Fault("the S3 server killed", Hosts.killed, ["s3"], 5),
]


class Reader:
    """Reads a crawl every 0.1 s, and measures the longest time between two successful reads."""

    def __init__(self, crawl, base=BASE):
        self.url, self.failures, self.longest = f"{base}/crawls/{crawl}", 0, 0.0
        self.seen, self.ended = {}, threading.Event()
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        answered = time.monotonic()
        while not self.ended.is_set():
            try:
                with OPENER.open(self.url, timeout=120) as response:
                    self.seen = json.load(response)
                self.longest = max(self.longest, time.monotonic() - answered)
                answered = time.monotonic()
            except (OSError, http.client.HTTPException, ValueError):
                self.failures += 1
            time.sleep(0.1)

    def wait(self, what, done, seconds):
        until = time.monotonic() + seconds
        while not (self.seen and done(self.seen)):
            require(time.monotonic() < until, f"timed out after {seconds} s while waiting for {what}: {self.seen.get('counts')}")
            time.sleep(0.1)


def early_requests(container):
    """Returns the number of requests that a site received, and by how many milliseconds each of them
    came too early: within the delay, or within a pause that the site asked for."""
    rows = sorted((line.split() for line in docker("logs", container).splitlines() if line), key=lambda row: float(row[0]))
    early, allowed = [], 0.0
    for began, pause_until, _ in rows:
        if float(began) < allowed - TOLERANCE_MS:
            early.append(round(allowed - float(began)))
        allowed = max(allowed, float(began) + DELAY_MS, float(pause_until))
    return early, len(rows)


def one(command, checkout, site, images, fault, scratch):
    """Runs one fault. Returns its row of the table."""
    overrides = ["scripts/containers.d/hosts.yml"]
    settings = {"TEST_DELAY_MS": DELAY_MS, "TEST_SITE": site, "TEST_SERVE": HERE / "serve.py", "TEST_S3": HERE / "s3.py", "TEST_CLOCK": fault.clock, "TEST_RETRY_AFTER_S": PAUSE_S if fault.clock else 0}
    with small_disk(scratch) if fault.inject is Hosts.full_disk else contextlib.nullcontext() as disk:
        if disk:
            overrides.append("small-disk.yml")
            options = f"{{type: none, o: bind, device: '{disk}'}}"
            (checkout / "small-disk.yml").write_text(f"volumes:\n  postgres:\n    driver_opts: {options}\n")
        compose = Compose(command, checkout, *overrides, **settings)
        shifted = ["shifted"] if fault.clock else []
        with compose.up("s3", "site", "postgres"):
            hosts = Hosts(compose, disk)
            make_bucket(hosts)
            compose("up", "--detach", "--scale", "worker=3", "backend", "worker", *shifted)
            return measure(hosts, images, fault)


def make_bucket(hosts):
    """Waits for the S3 server and creates the bucket. Without it, the service is not ready."""
    address = inspect(hosts.one("s3"))["NetworkSettings"]["Networks"][hosts.network("blobs")]["IPAddress"]
    until = time.monotonic() + 60
    while True:
        try:
            request = urllib.request.Request(f"http://{address}:5000/faces", method="PUT")
            OPENER.open(request, timeout=10).close()
            return
        except (OSError, http.client.HTTPException) as error:
            require(time.monotonic() < until, f"the S3 server does not answer: {error}")
            time.sleep(0.2)


@contextlib.contextmanager
def small_disk(scratch):
    folder = scratch / "small-disk"
    folder.mkdir(exist_ok=True)
    run("mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", folder)
    try:
        yield folder
    finally:
        run("umount", folder)


def measure(hosts, images, fault):
    for worker in hosts.compose.containers("worker") + hosts.compose.containers("shifted"):
        wait_healthy(worker)
    site = hosts.one("site")
    made = start_crawl(images)
    began, reader = time.monotonic(), Reader(made["id"])
    try:
        reader.wait("the first images", lambda seen: seen["counts"]["images"]["processed"] >= images // 8, 120)
        reader.failures, reader.longest = 0, 0.0
        with fault.inject(hosts, *fault.arguments):
            time.sleep(fault.seconds)
        reader.wait("the end of the crawl", lambda seen: seen["state"] != "running", 600)
    finally:
        reader.ended.set()
        reader.thread.join()
    took, counts = time.monotonic() - began, reader.seen["counts"]
    require(reader.seen["state"] == "completed", f"{fault.name}: {reader.seen}")
    stored, distinct = stored_images(hosts.compose)
    read = thumbnails()
    early, requests = early_requests(site)
    row = {"fault": fault.name, "seconds": round(took, 1), "unanswered": round(reader.longest, 1), "failed": reader.failures, "requests": requests, "faces": counts["faces"], "lost": images - min(distinct, read, counts["images"]["processed"]), "twice": stored - distinct, "early": len(early)}
    say(f"{row}")
    if early:
        say(f"{fault.name}: too early by {sorted(early)[-10:]} ms")
    return row


def thumbnails(base=BASE):
    """Fetches the thumbnail of every stored image. Returns their number."""
    seen, cursor = 0, ""
    while cursor is not None:
        page = call(f"{base}/images?limit=100{cursor}")
        for image in page["images"]:
            with OPENER.open(f"{base}/images/{image['id']}/thumbnail", timeout=30) as response:
                require(len(response.read()) > 0, f"the thumbnail of {image['id']} is empty")
            seen += 1
        cursor = f"&cursor={page['next_cursor']}" if page["next_cursor"] else None
    return seen


def table(rows):
    """Prints the rows of all rounds as a table, fault by fault. A lost or repeated image or a request
    within the delay fails the test."""
    say("| fault | crawl (s) | longest time between two successful reads (s) | failed reads | requests to the site | lost | stored twice | too early |")
    for name in dict.fromkeys(row["fault"] for row in rows):
        mine = [row for row in rows if row["fault"] == name]
        cell = lambda key: ", ".join(str(row[key]) for row in mine)
        say(f"| {name} | {cell('seconds')} | {cell('unanswered')} | {cell('failed')} | {cell('requests')} | {cell('lost')} | {cell('twice')} | {cell('early')} |")
    wrong = [row for row in rows if row["lost"] or row["twice"] or row["early"]]
    require(not wrong, f"{len(wrong)} runs lost or repeated an image, or asked the site too early")
    faces = {row["faces"] for row in rows}
    require(len(faces) == 1, f"the runs stored different numbers of faces: {sorted(faces)}")
