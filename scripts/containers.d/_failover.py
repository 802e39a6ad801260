"""Replaces a Postgres primary by its standby during a crawl, and makes the old primary a standby.

There are two runs: one with synchronous and one with asynchronous replication. Each has its own
containers: two Postgres servers (pg1 and pg2), PgBouncer, the API, two workers and a site. During
the crawl, a caller creates collections through the API and records each response. The commands are
those of docs/how-to/FAILOVER.md, with passwords for tests.
"""
import collections
import http.client
import json
import pathlib
import subprocess
import threading
import time
import urllib.error
import urllib.request

from _checks import require, start_crawl, stored_images
from _compose import OPENER, Compose, inspect, wait_healthy
from _engine import docker, say
from _faults import DELAY_MS, Reader, early_requests, thumbnails

HERE = pathlib.Path(__file__).parent
PORT = 18090
BASE = f"http://127.0.0.1:{PORT}"
PASSWORD = "facecrawl"
# Acknowledged writes that only the primary has when it is killed, in the asynchronous run.
UNREPLICATED = 20
# Longer than the service repeats a call.
OUTAGE_S = 20
# The functions that pg_rewind calls on the new primary (documentation of PostgreSQL, pg_rewind).
REWIND = ["pg_ls_dir(text, boolean, boolean)", "pg_stat_file(text, boolean)", "pg_read_binary_file(text)", "pg_read_binary_file(text, bigint, bigint, boolean)"]
# In postgresql.auto.conf, because pg_rewind starts the old primary without the options of its
# command line. Without wal_keep_size, this start removes WAL that pg_rewind needs.
SETTINGS = ["wal_log_hints = on", "wal_keep_size = '1GB'"]
PGBOUNCER = """\
[databases]
facecrawl = host={host} port=5432 dbname=facecrawl

[pgbouncer]
listen_addr = *
listen_port = 6432
unix_socket_dir =
auth_type = scram-sha-256
auth_file = /etc/pgbouncer/userlist.txt
pool_mode = session
default_pool_size = 90
max_client_conn = 500
ignore_startup_parameters = extra_float_digits
server_connect_timeout = 5
server_login_retry = 1
tcp_keepidle = 20
tcp_keepintvl = 10
tcp_keepcnt = 3
"""


class Project(Compose):
    project = "facecrawl-failover"


class Cluster:
    """The containers of one run."""

    # Name of the server -> service.
    SERVICES = {"pg1": "postgres", "pg2": "standby"}

    def __init__(self, compose, settings):
        self.compose, self.settings = compose, settings
        self.servers = {}

    def start(self, server):
        service = self.SERVICES[server]
        self.compose("up", "--detach", service)
        [self.servers[server]] = self.compose.containers(service)

    def psql(self, server, query):
        """Runs one statement on a server. Returns the output."""
        return docker(*self.client(server, query))

    def refused(self, server, query):
        """Returns the error of a statement, or `None` if the server executes it."""
        done = subprocess.run(["docker", *self.client(server, query)], capture_output=True, text=True)
        return done.stderr.strip() if done.returncode else None

    def client(self, server, query):
        options = ["--host=127.0.0.1", "--username=facecrawl", "--tuples-only", "--no-align", "--quiet", f"--command={query}"]
        return ["exec", f"--env=PGPASSWORD={PASSWORD}", self.servers[server], "psql", *options, "facecrawl"]

    def wait(self, server, what, query, expected, seconds=90):
        """Waits until a query returns a value."""
        wait(f"{server}: {what}", lambda: self.accepts(server) and self.psql(server, query) == expected, seconds)

    def accepts(self, server):
        return self.refused(server, "select 1") is None

    def repoint(self, server):
        (self.settings / "pgbouncer.ini").write_text(PGBOUNCER.format(host=server))

    def offline(self, server, command, *variables):
        """Runs a program of Postgres as the user postgres, on the volume of a server that does not
        run. The folder of the data is `$PGDATA`."""
        prepare = 'install -d -m 700 -o postgres -g postgres "$PGDATA"'
        become = "setpriv --reuid=postgres --regid=postgres --clear-groups"
        # `|| exit 1` keeps the shell as process 1. A killed server in a container leaves a
        # postmaster.pid with the number 1, and Postgres ignores this file only if process 1 belongs
        # to a different user.
        options = [option for variable in variables for option in ("-e", variable)]
        self.compose("run", "--rm", "--no-deps", "-T", *options, "--entrypoint=bash", self.SERVICES[server], "-c", f"{prepare} && {become} {command} || exit 1")


def wait(what, done, seconds):
    until = time.monotonic() + seconds
    while not done():
        require(time.monotonic() < until, f"timed out after {seconds} s while waiting for {what}")
        time.sleep(0.1)


class Writer:
    """Creates collections through the API, one after the other, and records each response."""

    def __init__(self):
        self.created, self.unknown, self.rejected = [], [], []
        self.responses, self.longest = collections.Counter(), 0.0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.write, daemon=True)
        self.thread.start()

    def write(self):
        number, acknowledged = 0, time.monotonic()
        while not self.ended.is_set():
            name = f"write-{number:05}"
            outcome = self.post(name)
            outcome.append(name)
            if outcome is self.created:
                self.longest = max(self.longest, time.monotonic() - acknowledged)
                acknowledged = time.monotonic()
            number += 1
            time.sleep(0.1)

    def post(self, name):
        """Creates a collection. Returns the list to which its name belongs."""
        request = urllib.request.Request(f"{BASE}/collections", json.dumps({"name": name}).encode(), {"content-type": "application/json"})
        try:
            with OPENER.open(request, timeout=120) as response:
                self.responses[str(response.status)] += 1
                return self.created
        except urllib.error.HTTPError as error:
            try:
                problem = json.loads(error.read())
                reason = f"{error.code} {problem['code']} {problem.get('reason', '')}".strip()
            except (ValueError, KeyError):
                reason = str(error.code)
            self.responses[reason] += 1
            return self.rejected if reason == "503 database_unavailable" else self.unknown
        except (OSError, http.client.HTTPException) as error:
            self.responses[type(error).__name__] += 1
            return self.unknown

    def end(self):
        self.ended.set()
        self.thread.join()


def run(command, checkout, site, images, scratch):
    """Runs both cases, prints a table and checks it."""
    rows = [one(command, checkout, site, images, synchronous, scratch) for synchronous in (True, False)]
    say("| " + " | ".join(rows[0]) + " |")
    for cells in rows:
        say("| " + " | ".join(str(cell) for cell in cells.values()) + " |")
    for cells in rows:
        name = cells["replication"]
        of_images = {cells[column] for column in ("images processed", "images stored", "distinct", "thumbnails")}
        require(of_images == {images}, f"{name}: {images} images were offered")
        require(cells["too early"] == 0, f"{name}: the site received requests too early")
        require(cells["of these stored"] == 0, f"{name}: a write was stored, but the service responded that nothing was changed")
    synchronous, asynchronous = rows
    require(synchronous["of these lost"] == 0, "synchronous replication lost an acknowledged write")
    require(synchronous["images stored after the promotion"] >= synchronous["images processed before the kill"], "synchronous replication lost an image")
    require(asynchronous["of these lost"] >= UNREPLICATED, "the asynchronous run did not lose the writes that were not replicated")
    require(synchronous["faces"] == asynchronous["faces"], "the runs stored different numbers of faces")


def one(command, checkout, site, images, synchronous, scratch):
    settings = scratch / "pgbouncer"
    settings.mkdir(exist_ok=True)
    settings.chmod(0o755)
    (settings / "userlist.txt").write_text(f'"facecrawl" "{PASSWORD}"\n')
    variables = {"PORT": PORT, "POSTGRES_SHARED_BUFFERS": "256MB", "TEST_DELAY_MS": DELAY_MS, "TEST_SITE": site, "TEST_SERVE": HERE / "serve.py", "TEST_PGBOUNCER": settings}
    compose = Project(command, checkout, "scripts/containers.d/failover.yml", **variables)
    cluster = Cluster(compose, settings)
    cluster.repoint("pg1")
    with compose.up("postgres"):
        replicate(cluster, synchronous)
        compose("up", "--detach", "pgbouncer", "site")
        compose("up", "--detach", "--scale", "worker=2", "backend", "worker")
        for worker in compose.containers("worker"):
            wait_healthy(worker)
        return measure(cluster, images, synchronous)


def replicate(cluster, synchronous):
    """Makes pg2 a standby of pg1."""
    cluster.start("pg1")
    wait_healthy(cluster.servers["pg1"])
    cluster.psql("pg1", f"create role replicator replication login password '{PASSWORD}'")
    for function in REWIND:
        cluster.psql("pg1", f"grant execute on function pg_catalog.{function} to replicator")
    allow = 'echo "host replication replicator all scram-sha-256" >> "$PGDATA/pg_hba.conf"'
    docker("exec", "--user=postgres", cluster.servers["pg1"], "bash", "-c", allow)
    for setting in SETTINGS:
        cluster.psql("pg1", f"alter system set {setting}")
    docker("restart", cluster.servers["pg1"])
    wait("pg1 to restart", lambda: cluster.accepts("pg1"), 60)
    source = "host=pg1 user=replicator application_name=pg2"
    cluster.offline("pg2", f'pg_basebackup --dbname="{source} password=$REPLICATOR" --pgdata="$PGDATA" --write-recovery-conf --checkpoint=fast', f"REPLICATOR={PASSWORD}")
    cluster.start("pg2")
    attach(cluster, "pg1", "pg2", synchronous)


def attach(cluster, primary, standby, synchronous):
    """Waits until a standby receives WAL. In the synchronous case, the primary then waits for it at
    each commit. Until then it must not, because it would wait forever."""
    state = f"select sync_state from pg_stat_replication where application_name = '{standby}' and state = 'streaming'"
    cluster.wait(primary, f"{standby} streams", state, "async")
    if synchronous:
        cluster.psql(primary, f"alter system set synchronous_standby_names = '{standby}'")
        cluster.psql(primary, "select pg_reload_conf()")
        cluster.wait(primary, f"{standby} is synchronous", state, "sync")


def measure(cluster, images, synchronous):
    name = "synchronous" if synchronous else "asynchronous"
    crawl = start_crawl(images, BASE)["id"]
    began, reader, writer = time.monotonic(), Reader(crawl, BASE), Writer()
    processed = lambda: reader.seen["counts"]["images"]["processed"]
    try:
        reader.wait("the first images", lambda _: processed() >= images // 8, 120)
        wait("the first writes", lambda: len(writer.created) >= UNREPLICATED, 120)
        if not synchronous:
            detach(cluster, processed, writer)
        # The primary fails. A person needs some time to notice it.
        docker("kill", cluster.servers["pg1"])
        before, written = processed(), len(writer.created)
        time.sleep(OUTAGE_S)
        after = promote(cluster)
        wait("a write after the failover", lambda: len(writer.created) > written, 120)
        reader.wait("the end of the crawl", lambda seen: seen["state"] != "running", 600)
        took = time.monotonic() - began
        rewind(cluster, synchronous)
    finally:
        reader.ended.set()
        writer.end()
        reader.thread.join()
    require(reader.seen["state"] == "completed", f"{name}: {reader.seen}")
    return {"replication": name, "crawl (s)": round(took, 1), "images processed before the kill": before, "images stored after the promotion": after, **row(cluster, reader, writer, name)}


def detach(cluster, processed, writer):
    """Ends replication, and waits until only the primary has some acknowledged writes and processed
    images."""
    # Disconnecting the container would give its address back to the engine. The container could
    # then receive the address of pg1, to which PgBouncer still connects.
    cluster.psql("pg2", "alter system set primary_conninfo = ''")
    cluster.psql("pg2", "select pg_reload_conf()")
    cluster.wait("pg1", "pg2 is detached", "select count(*) from pg_stat_replication", "0")
    images, writes = processed(), len(writer.created)
    wait("writes that are not replicated", lambda: len(writer.created) >= writes + UNREPLICATED and processed() > images, 60)


def promote(cluster):
    """Makes pg2 the primary, and directs PgBouncer to it. pg1 has stopped before. Returns the number
    of images that are stored on pg2 before the service continues."""
    require(not inspect(cluster.servers["pg1"])["State"]["Running"], "pg1 still runs")
    cluster.psql("pg2", "select pg_promote()")
    cluster.wait("pg2", "is the primary", "select pg_is_in_recovery()", "f")
    stored, _ = stored_images(cluster.compose, "standby")
    cluster.repoint("pg2")
    docker("restart", cluster.compose.containers("pgbouncer")[0])
    return stored


def rewind(cluster, synchronous):
    """Makes pg1 a standby of pg2."""
    cluster.psql("pg2", "checkpoint")
    source = "host=pg2 user=replicator dbname=facecrawl application_name=pg1"
    cluster.offline("pg1", f'pg_rewind --source-server="{source} password=$REPLICATOR" --target-pgdata="$PGDATA" --write-recovery-conf', f"REPLICATOR={PASSWORD}")
    docker("start", cluster.servers["pg1"])
    attach(cluster, "pg2", "pg1", synchronous)
    cluster.wait("pg1", "is a standby", "select pg_is_in_recovery()", "t")
    said = cluster.refused("pg1", "create table refused ()")
    require(said and "read-only" in said, f"pg1 answered to a write: {said}")
    position = cluster.psql("pg2", "select pg_current_wal_lsn()")
    cluster.wait("pg1", "has the data of pg2", f"select pg_last_wal_replay_lsn() >= '{position}'", "t")


def row(cluster, reader, writer, name):
    """Returns what the service and the new primary contain at the end."""
    exist = set(cluster.psql("pg2", "select name from collections where name like 'write-%'").split())
    lost = [write for write in writer.created if write not in exist]
    stored, distinct = stored_images(cluster.compose, "standby")
    early, requests = early_requests(cluster.compose.containers("site")[0])
    for response, count in writer.responses.items():
        say(f"{name}: {count} responses {response}")
    cells = {
        "acknowledged writes": len(writer.created),
        "of these lost": len(lost),
        "rejected writes": len(writer.rejected),
        "of these stored": len(exist.intersection(writer.rejected)),
        "writes with an unknown result": len(writer.unknown),
        "longest time between two acknowledged writes (s)": round(writer.longest, 1),
        "images processed": reader.seen["counts"]["images"]["processed"],
        "images stored": stored,
        "distinct": distinct,
        "thumbnails": thumbnails(BASE),
        "faces": reader.seen["counts"]["faces"],
        "requests to the site": requests,
        "too early": len(early),
    }
    say(str(cells))
    return cells
