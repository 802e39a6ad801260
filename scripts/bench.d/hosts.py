"""The benchmark of a crawl over many hosts: `bench crawl --hosts N`."""
import contextlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
import time
import urllib.parse
import urllib.request

from common import MODELS, compact, environment, medians, ratios, release, resident_mb, rounds, say, scratch
from cpu import own, tree
from service import running

# How often the counts of the crawl and the memory are read.
INTERVAL_S = 2.0


@contextlib.contextmanager
def serving_hosts(folder, place, arguments):
    """Yields the process of the server, and the names and URLs of the hosts. When the input of the
    process is closed, it prints its report and ends."""
    per_host = -(-arguments.pages // arguments.hosts)
    options = {"hosts": arguments.hosts, "pages": per_host, "delay-ms": arguments.delay, "latency-ms": arguments.latency, "authority": place / "authority.pem"}
    command = [folder / "examples/measure", "serve-hosts", *(str(part) for name, value in options.items() for part in (f"--{name}", value))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
        finally:
            process.stdin.close()


def with_names(folder, names, place):
    """Returns a folder with a program `facecrawl` that resolves `names` to loopback, without a change
    of the system: it has its own mount of the hosts file."""
    wrapped = place / "with-names"
    wrapped.mkdir()
    hosts = wrapped / "hosts"
    lines = [pathlib.Path("/etc/hosts").read_text(encoding="utf-8"), *(f"127.0.0.1 {name}" for name in names)]
    hosts.write_text("\n".join(lines) + "\n", encoding="utf-8")
    hosts.chmod(0o644)
    # The user stays the same, because the private Postgres does not run as root.
    namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-current-user", "--keep-caps", "--mount"]
    mount = f"mount --bind {shlex.quote(str(hosts))} /etc/hosts && exec {shlex.quote(str(folder / 'facecrawl'))} \"$@\""
    program = wrapped / "facecrawl"
    program.write_text(f"#!/bin/sh\nexec {shlex.join(namespace)} sh -c {shlex.quote(mount)} sh \"$@\"\n", encoding="utf-8")
    program.chmod(0o755)
    if subprocess.run([program, "--version"], stdout=subprocess.DEVNULL, check=False).returncode:
        sys.exit("bench: crawl --hosts needs unshare and the right to mount a file in a separate namespace")
    return wrapped


def call(base, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{base}{path}", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def crawl_hosts(arguments):
    """Runs the rounds of `bench crawl --hosts`."""
    folder = release()
    found = {f"{number} process{'es' * (number > 1)}": lambda number=number: crawl_with(number, folder, arguments) for number in arguments.processes}
    results = rounds(found, arguments.rounds)
    figures = ["pages", "seconds", "pages_per_second", "pages_per_core_second", "violations"]
    names = list(results)
    pairs = [(name, names[0]) for name in names[1:]]
    return {
        "hosts": arguments.hosts,
        "medians": medians(results, figures),
        "ratios": ratios(results, "pages_per_second", pairs),
        "core_ratios": ratios(results, "pages_per_core_second", pairs),
        "rounds": results,
    }


def crawl_with(number, folder, arguments):
    """Crawls the hosts with `number` processes on one database."""
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(scratch())
        server, site = stack.enter_context(serving_hosts(folder, place, arguments))
        program = with_names(folder, site["names"], place)
        crawling = {"CRAWL_ALLOW_PRIVATE": "127.0.0.0/8", "CRAWL_EXTRA_CA": place / "authority.pem", "CRAWL_DELAY_MS": arguments.delay}
        crawling |= compact(MODELS, place)
        services = []
        for other in range(number):
            data = place / str(other) / "data"
            data.parent.mkdir()
            own_environment = environment(DATA_DIR=data, PORT="0", LOG_LEVEL="warn", **crawling)
            if services:
                # `environment` removes the database of the user.
                sockets = urllib.parse.quote(str(place / "0/data/postgres.run"), safe="")
                own_environment["DATABASE_URL"] = f"postgres://postgres@localhost:5432/facecrawl?host={sockets}"
                own_environment["BLOB_STORE_URL"] = str(place / "0/data/blobs")
            services.append(stack.enter_context(running(program / "facecrawl", own_environment, data.parent)))
        processes = [one.process.pid for one in services]

        def cpu():
            """Returns the seconds of the processes, of Postgres and of the server."""
            each = [own(pid) for pid in processes]
            return {"service": sum(each), "postgres": sum(map(tree, processes)) - sum(each), "server": own(server.pid)} | {f"process_{at}": seconds for at, seconds in enumerate(each, 1)}

        base, before, started, samples = services[0].base, cpu(), time.monotonic(), []
        crawl = call(base, "/crawls", {"seeds": site["urls"], "max_pages": arguments.pages, "max_depth": 50})["id"]
        while True:
            time.sleep(INTERVAL_S if arguments.pages > 2000 else 0.2)
            state = call(base, f"/crawls/{crawl}")
            seconds, counts = time.monotonic() - started, state["counts"]["pages"]
            samples.append({"seconds": round(seconds, 1), "pages": counts["fetched"], "queued": counts["queued"], "resident_mb": [round(resident_mb(pid), 1) for pid in processes]})
            if len(samples) % 10 == 0:
                say(samples[-1])
            if state["state"] not in ("queued", "running"):
                break
        used = {part: seconds - before[part] for part, seconds in cpu().items()}
        server.stdin.close()
        requests = json.loads(server.stdout.read())
    pages = counts["fetched"]
    if pages != arguments.pages or requests["pages"] < pages:
        sys.exit(f"bench: {pages} of {arguments.pages} pages were fetched: {state}, {requests}")
    own_seconds = used["service"] + used["postgres"]
    return {
        "pages": pages,
        "seconds": round(seconds, 1),
        "pages_per_second": round(pages / seconds, 1),
        "pages_per_core_second": round(pages / own_seconds, 1),
        "cpu_ms_per_page": {part: round(1e3 * spent / pages, 3) for part, spent in used.items()},
        "violations": sum(one["violations"] for one in requests["delays"]),
        "requests": requests,
        "memory_mb": {when: samples[index]["resident_mb"] for when, index in (("start", len(samples) // 10), ("middle", len(samples) // 2), ("end", -1))},
        "samples": samples[:: max(1, len(samples) // 20)],
    }
