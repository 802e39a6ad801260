"""The checks of scripts/test-containers. A failed check ends the script with the reason."""
import collections
import json
import re
import subprocess
import time

from _compose import BASE, GPU_BASE, LABEL, PROMETHEUS_BASE, Compose, call, inspect, wait_healthy
from _engine import docker, say

# A decoder that reads memory that is not its own may fail only now and then.
REPEATS = 40
OPERATIONS = ["face_detection", "face_embedding"]


def require(condition, reason):
    if not condition:
        raise SystemExit(f"containers: {reason}")


def image(name, base, limit_mb, *listed):
    """Checks the size and the user of an image, and that its bill of materials has these names."""
    described = json.loads(docker("image", "inspect", name))[0]
    size, of_base = described["Size"] / 1e6, json.loads(docker("image", "inspect", base))[0]["Size"] / 1e6
    say(f"{name}: {size:.0f} MB, of which the base {of_base:.0f} MB")
    require(size <= limit_mb, f"{name} has {size:.0f} MB; {limit_mb} MB are allowed")
    require(described["Config"]["User"] == "10001:10001", f"{name} runs as {described['Config']['User']}")
    bill = described["Config"]["Labels"]["facecrawl.sbom"]
    document = json.loads(docker("run", "--rm", "--network=none", "--entrypoint=cat", name, bill))
    names = {component["name"] for component in document["components"]}
    require(set(listed) <= names, f"{bill} of {name} lists only {sorted(names)}")
    say(f"{name}: {bill} lists {len(names)} components")


def detect(base, picture):
    """Checks that one face is found in a portrait (JPEG), each time."""
    for _ in range(REPEATS):
        faces = call(f"{base}/faces/detect?embeddings=false", picture, "image/jpeg")["faces"]
        require(len(faces) == 1, f"{len(faces)} faces were found instead of one")
    say(f"POST /faces/detect, {REPEATS} times: 1 face, det_score {faces[0]['det_score']:.2f}")


def unprivileged(container):
    """Checks that the first process of a container is not root, has no capabilities and can gain
    none, and that its file system is read-only."""
    status = dict(line.split(":", 1) for line in docker("exec", container, "cat", "/proc/1/status").splitlines())
    require(int(status["CapEff"], 16) == 0 and status["NoNewPrivs"].strip() == "1", f"the first process of {container[:12]} has capabilities (CapEff {status['CapEff'].strip()}) or can gain privileges")
    require("0" not in status["Uid"].split(), f"{container[:12]} runs as root")
    require(inspect(container)["HostConfig"]["ReadonlyRootfs"], f"{container[:12]} can write to its file system")


def start_crawl(images, base=BASE, **options):
    """Starts a crawl of the test site, which has `images` images. Returns the crawl."""
    return call(f"{base}/crawls", {"seeds": ["http://site:8000/"], "dedupe": "exact", "max_images": 10 * images, **options})


def stored_images(compose, service="postgres"):
    """Returns the number of stored images, and the number of different ones."""
    [database] = compose.containers(service)
    query = "select count(*) || ' ' || count(distinct sha256) from images"
    options = ["--host=127.0.0.1", "--username=facecrawl", "--tuples-only", "--no-align", f"--command={query}"]
    stored, different = docker("exec", "--env=PGPASSWORD=facecrawl", database, "psql", *options, "facecrawl").split()
    return int(stored), int(different)


def resident_mb(container):
    used = docker("stats", "--no-stream", "--format={{.MemUsage}}", container).split("iB")[0]
    number, unit = float(used[:-1]), used[-1]
    return number * {"K": 1 / 1024, "M": 1, "G": 1024}[unit]


def refuses_without_runtime(command, checkout):
    """Checks that `up backend-gpu` fails without the NVIDIA runtime, and that the message names it."""
    if "nvidia" in json.loads(docker("info", "--format={{json .Runtimes}}")):
        say("skipped: this engine has the runtime nvidia")
        return
    compose = Compose(command, checkout)
    said = compose.output_of_failure("up", "--detach", "--no-build", "backend-gpu")
    compose.down()
    require(said and "nvidia" in said, f"without the runtime nvidia, `up backend-gpu` said: {said}")
    say("without the NVIDIA runtime: " + next(line for line in said.splitlines() if "nvidia" in line).strip())


def nvidia_image_on_the_cpu(command, checkout, picture):
    """Starts `backend-gpu` without a GPU and detects a face."""
    compose = Compose(command, checkout, "deploy/no-gpu.yml", QUALITY_PROFILE="strict")
    with compose.up("backend-gpu") as seconds:
        say(f"`up backend-gpu`: {seconds:.1f} s")
        require(compose.running() == ["backend-gpu", "postgres"], f"it started {compose.running()}")
        [container] = compose.containers("backend-gpu")
        say(f"healthy {wait_healthy(container):.1f} s after its start, {resident_mb(container):.0f} MB")
        unprivileged(container)
        for one in compose.containers("postgres"):
            unprivileged(one)
        operations = [one for one in call(f"{GPU_BASE}/gpu")["operations"] if one["operation"] in OPERATIONS]
        require(len(operations) == len(OPERATIONS), f"GET /gpu: {operations}")
        for operation in operations:
            require(operation["effective"] == "cpu" and operation["reason"], f"GET /gpu: {operation}")
            say(f"GET /gpu: {operation['operation']} on {operation['effective']}: {operation['reason']}")
        detect(GPU_BASE, picture)
        environment = inspect(container)["Config"]["Env"]
        require("QUALITY_PROFILE=strict" in environment, "a setting of .env did not reach the container")


def without_network(command, checkout, picture):
    """Starts the API on a network that reaches nothing but the database."""
    (checkout / "internal.yml").write_text("networks:\n  default:\n    internal: true\n")
    compose = Compose(command, checkout, "internal.yml")
    with compose.up("backend"):
        [container] = compose.containers("backend")
        say(f"without a network: healthy {wait_healthy(container):.1f} s after its start, {resident_mb(container):.0f} MB")
        unprivileged(container)
        [network] = inspect(container)["NetworkSettings"]["Networks"].values()
        detect(f"http://{network['IPAddress']}:8080", picture)


def crawl(command, checkout, site_image, site, images):
    """Crawls a site with three workers, kills one, and checks that every image is stored once."""
    settings = {"CRAWL_ALLOW_PRIVATE": "172.16.0.0/12,192.168.0.0/16,10.0.0.0/8", "CRAWL_DELAY_MS": "20"}
    compose = Compose(command, checkout, **settings)
    with compose.up("--scale", "worker=3", "backend", "worker"):
        workers = compose.containers("worker")
        require(len(workers) == 3, f"{len(workers)} workers run")
        for worker in workers:
            say(f"worker healthy {wait_healthy(worker):.1f} s after its start, {resident_mb(worker):.0f} MB")
            unprivileged(worker)
        network = next(iter(inspect(workers[0])["NetworkSettings"]["Networks"]))
        server = docker("run", "--detach", f"--label={LABEL}", "--network", network, "--network-alias=site", f"--volume={site}:/site:ro", site_image)
        try:
            made = start_crawl(images)
            began, killed = time.monotonic(), False
            while (seen := call(f"{BASE}/crawls/{made['id']}"))["state"] == "running":
                require(time.monotonic() < began + 300, f"the crawl has not ended after 300 s: {seen['counts']}")
                if not killed and seen["counts"]["images"]["processed"] >= images // 8:
                    docker("kill", workers[0])
                    killed = True
                time.sleep(0.1)
            counts = seen["counts"]["images"]
            say(f"crawl with a killed worker: {seen['state']} in {time.monotonic() - began:.1f} s, {json.dumps(seen['counts'])}")
            require(killed and seen["state"] == "completed" and counts["processed"] == images, f"{images} images were offered: {seen['counts']}")
            stored = stored_images(compose)
            require(stored == (images, images), f"stored and distinct images: {stored}")
        finally:
            docker("rm", "--force", server, stderr=subprocess.DEVNULL)


def prometheus(command, checkout):
    """Starts Prometheus of the profile `monitoring`, and checks that it finds the API and every
    worker, and evaluates every alert."""
    compose = Compose(command, checkout)
    alerts = len(re.findall("- alert:", (checkout / "docs/monitoring/alerts.yml").read_text()))
    with compose.up("--scale", "worker=3", "backend", "worker", "prometheus"):
        [container] = compose.containers("prometheus")
        say(f"Prometheus healthy {wait_healthy(container):.1f} s after its start, {resident_mb(container):.0f} MB")
        unprivileged(container)
        began = time.monotonic()
        while True:
            targets = call(f"{PROMETHEUS_BASE}/api/v1/targets?state=active")["data"]["activeTargets"]
            up = collections.Counter(target["labels"]["job"] for target in targets if target["health"] == "up")
            rules = [rule for group in call(f"{PROMETHEUS_BASE}/api/v1/rules")["data"]["groups"] for rule in group["rules"]]
            healthy = sum(rule["health"] == "ok" for rule in rules)
            if up == {"facecrawl": 1, "facecrawl-worker": 3} and len(targets) == 4 and healthy == alerts:
                break
            errors = [one["lastError"] for one in targets + rules if one.get("lastError")]
            require(time.monotonic() < began + 90, f"Prometheus reaches {dict(up)} of {len(targets)} targets and evaluates {healthy} of {alerts} alerts: {errors}")
            time.sleep(0.5)
        say(f"Prometheus reaches the API and three workers and evaluates {alerts} alerts after a further {time.monotonic() - began:.1f} s")
