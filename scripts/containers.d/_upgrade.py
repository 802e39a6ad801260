"""Upgrades a service in use, from the last released image to newer ones.

Two versions come after the release. Each is this checkout with one migration more: the first one
lets older programs run, the second one stops them. A crawl runs during each upgrade. At the end
every image must be stored exactly once.
"""
import contextlib
import json
import subprocess
import time

from _checks import require, start_crawl, stored_images
from _compose import BASE, LABEL, Compose, call, inspect, wait_healthy
from _engine import docker, say
from _faults import Reader

STOPS = "-- Stops older programs."
# Tables that every job and many requests use.
TABLES = ["crawls", "pages", "image_urls", "images", "image_sources", "faces", "collections", "jobs", "finished_jobs", "hosts"]
MIGRATIONS = {
    "compatible": "\n".join(f"alter table {table} add column of_the_next_version text not null default '';" for table in TABLES),
    "stopping": f"{STOPS}\ncreate table of_the_last_version (id bigint primary key);",
}
MESSAGE = "stop this version and start the newer one"


def add_migrations(checkout, *kinds):
    for number, kind in enumerate(kinds, 9001):
        (checkout / f"migrations/{number}_{kind}.sql").write_text(MIGRATIONS[kind] + "\n")


class Upgrade:
    """A running service, and containers of newer images on the same database."""

    def __init__(self, compose):
        self.compose, self.newer = compose, []

    def start(self, image, role):
        """Starts a container of a newer image with the configuration of the service `role`."""
        like = inspect(self.compose.containers(role)[0])
        variables = [f"--env={one}" for one in like["Config"]["Env"]]
        [network] = like["NetworkSettings"]["Networks"]
        volumes = [f"--volume={mount['Name']}:{mount['Destination']}" for mount in like["Mounts"] if mount["Type"] == "volume"]
        command = ["serve"] if role == "backend" else ["worker"]
        health = " ".join(like["Config"]["Healthcheck"]["Test"][1:])
        options = ["--detach", f"--label={LABEL}", "--read-only", "--tmpfs=/tmp", f"--health-cmd={health}", "--health-interval=1s", f"--network={network}"]
        self.newer.append(docker("run", *options, *variables, *volumes, image, *command))
        return self.newer[-1]

    def refused(self, container):
        """Waits until a container of an older version has ended with the message, and has been
        started again with the same result."""
        until = time.monotonic() + 120
        while docker("logs", container, stderr=subprocess.STDOUT).count(MESSAGE) < 2 or inspect(container)["RestartCount"] < 2:
            require(time.monotonic() < until, f"{container[:12]} still runs the older version:\n{docker('logs', '--tail=20', container, stderr=subprocess.STDOUT)}")
            time.sleep(0.5)

    def remove(self):
        for container in self.newer:
            docker("rm", "--force", container)


def address(container):
    [network] = inspect(container)["NetworkSettings"]["Networks"].values()
    return f"http://{network['IPAddress']}:8080"


def required(compose):
    [database] = compose.containers("postgres")
    query = "select coalesce(max(version), 0) || ' ' || (select version from required_schema) from _sqlx_migrations"
    options = ["--host=127.0.0.1", "--username=facecrawl", "--tuples-only", "--no-align", f"--command={query}"]
    return tuple(map(int, docker("exec", "--env=PGPASSWORD=facecrawl", database, "psql", *options, "facecrawl").split()))


def run(command, checkout, site_image, site, images, release, compatible, stopping):
    """Runs both upgrades with three images and prints what happened."""
    (checkout / "release.yml").write_text(f"services: {json.dumps({name: {'image': release} for name in ('backend', 'worker')})}\n")
    settings = {"CRAWL_ALLOW_PRIVATE": "172.16.0.0/12,192.168.0.0/16,10.0.0.0/8", "CRAWL_DELAY_MS": "200"}
    compose = Compose(command, checkout, "release.yml", **settings)
    with compose.up("--no-build", "--scale", "worker=2", "backend", "worker"), contextlib.ExitStack() as stack:
        upgrade = Upgrade(compose)
        stack.callback(upgrade.remove)
        [api] = compose.containers("backend")
        workers = compose.containers("worker")
        for container in (api, *workers):
            wait_healthy(container)
        network = next(iter(inspect(api)["NetworkSettings"]["Networks"]))
        server = docker("run", "--detach", f"--label={LABEL}", "--network", network, "--network-alias=site", f"--volume={site}:/site:ro", site_image)
        stack.callback(docker, "rm", "--force", server)

        before, _ = required(compose)
        reader = begin(images)
        stack.callback(reader.ended.set)
        newer = upgrade.start(compatible, "backend")
        wait_healthy(newer)
        wait_healthy(upgrade.start(compatible, "worker"))
        require(required(compose) == (9001, 0), f"the schema is {required(compose)}")
        # A process of the release also starts on the newer schema.
        docker("restart", workers[0])
        end(compose, reader, images, "compatible migration")
        for container in (api, *workers):
            wait_healthy(container)
            require(MESSAGE not in docker("logs", container, stderr=subprocess.STDOUT), f"{container[:12]} was stopped")
        require(reader.failures == 0, f"{reader.failures} reads failed")
        say(f"upgrade from schema {before} to 9001: the older API and workers continued, and a worker of the release started again; longest time between two reads {reader.longest:.1f} s")

        call(f"{BASE}/collections", {"name": "second"})
        reader = begin(images, collection="second")
        stack.callback(reader.ended.set)
        last = upgrade.start(stopping, "backend")
        for container in (api, *workers):
            upgrade.refused(container)
        wait_healthy(last)
        require(required(compose) == (9002, 9002), f"the schema is {required(compose)}")
        reader.url = reader.url.replace(BASE, address(last))
        wait_healthy(upgrade.start(stopping, "worker"))
        end(compose, reader, images, "stopping migration", crawls=2)
        line = next(line for line in docker("logs", workers[0], stderr=subprocess.STDOUT).splitlines() if MESSAGE in line)
        say(f"upgrade from schema 9001 to 9002: the older API and workers ended; longest time between two reads {reader.longest:.1f} s")
        say(f"message of an older worker: {line}")


def begin(images, **options):
    """Starts a crawl, and waits until an eighth of its images are processed."""
    reader = Reader(start_crawl(images, **options)["id"])
    reader.wait("the first images", lambda seen: seen["counts"]["images"]["processed"] >= images // 8, 120)
    reader.failures, reader.longest = 0, 0.0
    return reader


def end(compose, reader, images, what, crawls=1):
    try:
        reader.wait("the end of the crawl", lambda seen: seen["state"] != "running", 600)
    finally:
        reader.ended.set()
        reader.thread.join()
    seen, (stored, distinct) = reader.seen, stored_images(compose)
    counts = seen["counts"]["images"]
    say(f"{what}: crawl {seen['state']}, {counts['processed']} of {images} images processed, {stored} stored, {reader.failures} failed reads")
    require(seen["state"] == "completed" and counts["processed"] == images, f"{what}: {seen['counts']}")
    require((stored, distinct) == (crawls * images, images), f"{what}: {stored} stored, {distinct} of them different")
