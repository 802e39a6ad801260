"""The benchmarks: a function for each, which returns the report."""
import collections
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import tomllib

from common import MODELS, PEERS, ROOT, compact, draw, last_json, measure, medians, python, ratios, release, resident_mb, rounds, say, scratch, service, serving
from cpu import Measured, own
from hosts import crawl_hosts
from packs import EQUAL, INSIGHTFACE_PACKAGES, SAME_MODELS, SCRAPY_PACKAGES, bench, link, link_models, link_pair, link_pictures, mix, programs, settings

OPENVINO = ROOT / ".runtime/openvino/libonnxruntime.so"
# What the example `measure` measures in a Postgres with the settings of the service.
MEASUREMENTS = ["queue", "search", "frontier", "footprint", "control"]
IMAGES = {"images": (ROOT / "../shared/images", "a folder of photographs")}
OF_MODELS = {"models": (MODELS, "the models of the packs research, compact and opencv")}


def several(number):
    return {"rounds": (number, "number of rounds")}


def crawl(arguments):
    """Measures pages and images per second of Scrapy's ImagesPipeline and of the crawler alone
    (`measure crawler`) on one local site. Both follow links, obey robots.txt and write images to
    files, with 32 simultaneous requests and without a delay.

    With --hosts N, measures a crawl of the whole service over N hosts instead: pages of 16 to 31 KB
    over TLS from names on loopback, with robots.txt, delays and a database, without images. Each
    round runs the crawl with each number of --processes. Three quarters of
    the hosts offer HTTP/2, a tenth set a Crawl-delay of twice --delay, and a third send an ETag.
    `cpu_ms_per_page` has the processor time by part. `pages_per_core_second` divides the pages by
    the processor seconds of the service and Postgres, without those of the server. The server
    reports requests that came earlier than the delay of their host. Needs the right to mount a file
    in a separate namespace (`unshare`), where the names resolve to 127.0.0.1."""
    if arguments.hosts:
        return crawl_hosts(arguments)
    peer, folder = python("crawl", SCRAPY_PACKAGES), release()
    total = arguments.pages * 10
    with scratch() as place:
        draw(folder, "portraits", place / "site", -(-total // 4), 4)
        for spare in sorted((place / "site").iterdir())[total:]:
            spare.unlink()
        with serving(folder, place / "site") as (url, _):
            def contestant(*command):
                def run():
                    with tempfile.TemporaryDirectory(dir=place) as images:
                        result = last_json([*command, url, images])
                    if result["images"] != total:
                        sys.exit(f"bench: found {result['images']} of {total} images: {result}")
                    return result | {f"{kind}_per_second": result[kind] / result["seconds"] for kind in ("images", "pages")}

                return run

            contestants = {"scrapy": contestant(peer, PEERS / "scrapy_spider.py"), "crawler": contestant(folder / "examples/measure", "crawler")}
            results = rounds(contestants, arguments.rounds)
    figures = ["seconds", "pages_per_second", "images_per_second"]
    return {"images": total, "medians": medians(results, figures), "ratios": ratios(results, "images_per_second", [("crawler", "scrapy")])}


crawl.options = {
    "pages": (100, "number of pages with ten images; with --hosts, of all pages"),
    "hosts": (0, "number of hosts of a crawl of the whole service; 0 measures the crawler alone"),
    "delay": (1000, "with --hosts, CRAWL_DELAY_MS in milliseconds"),
    "processes": ([1, 2], "with --hosts, numbers of processes on one database"),
    "latency": (0, "with --hosts, time before each response in milliseconds"),
} | several(3)


class Crawled:
    """Runs programs that crawl one website, and counts their processor time."""

    def __init__(self, url, server, pictures):
        self.url, self.server, self.pictures, self.program = url, server, pictures, None
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        for _ in self.server.stderr:
            self.program.begin()

    def run(self, command, **options):
        """Returns what the program reports, with its processor time and that of the server."""
        before = own(self.server.pid)
        self.program = Measured(command, **options)
        result = self.program.last_json() | {"server_cpu_seconds": round(own(self.server.pid) - before, 2)}
        if images := result.get("images"):
            result |= {"pictures": images["processed"] + images["duplicate"], "duplicates": images["duplicate"], "skipped": images["skipped"], "failed": images["failed"]}
        if result["pictures"] == 0:
            sys.exit(f"bench: no image was processed: {result}")
        rate = result["pictures"] / result["seconds"]
        return result | {"images_per_second": rate, "cpu_ms_per_image": 1e3 * result["cpu_seconds"] / result["pictures"]}

    def facecrawl(self, binary, place, environment, *options, **redirected):
        """Runs `facecrawl scan` with an empty database. Its files stay until all runs have ended: for
        minutes after many files were deleted, ext4 takes longer to create new ones."""
        limits = ["--max-pages", self.pictures, "--max-images", self.pictures]
        command = [binary, "--data-dir", tempfile.mkdtemp(dir=place), "scan", self.url, "--json", *limits, *options]
        return self.run(command, env=environment, **redirected)

    def statements(self, binary, place, environment):
        """Returns the number of SQL statements for each image, and the most frequent ones. Postgres
        logs each statement, so the run is slower than the measured ones."""
        environment = environment | {"PGOPTIONS": "-c log_statement=all", "LOG_LEVEL": "error,postgres=debug"}
        log = place / "statements.log"
        with open(log, "wb") as sink:
            pictures = self.facecrawl(binary, place, environment, stderr=sink)["pictures"]
        logged = re.findall(r"LOG:  (?:execute [^:]+|statement): ([^\n]*(?:\n[^\n]*DEBUG \t[^\n]*)?)", log.read_text(errors="replace"))
        # A statement that begins with a line break is logged from the second line on.
        texts = collections.Counter(" ".join(re.sub(r"\n[^\n]*DEBUG \t", " ", text).split())[:80] for text in logged)
        frequent = {text: round(count / pictures, 3) for text, count in texts.most_common(40)}
        return {"per_image": round(texts.total() / pictures, 2), "most_frequent": frequent}

    def scrapy(self, interpreter, *arguments):
        with scratch() as place:
            answer = self.run([interpreter, PEERS / "scrapy_faces.py", self.url, place / "faces.sqlite", *arguments])
        if answer["failed"]:
            say(f"{arguments[0]} failed with {answer['failed']} images: {answer['failures']}")
        # The program has no child processes, so this figure is only measurement error.
        del answer["children_cpu_seconds"]
        return answer


def e2e(arguments):
    """Measures a crawl from a URL to stored faces over a realistic mix of images, compared with Scrapy
    and the libraries that a user would combine with it.

    The formats, sizes and bytes per pixel of the mix resemble those of the web, and three quarters of
    its images have no face (docs/measurements/MIX.md). Every round runs each of these, with an empty
    database where one is used:
      insightface       Scrapy, InsightFace (SCRFD 2.5G, MobileFaceNet, det_size 640), SQLite
      opencv            Scrapy, FaceDetectorYN (YuNet), warpAffine, MobileFaceNet in ONNX Runtime, SQLite
      opencv_sface      Scrapy, FaceDetectorYN and FaceRecognizerSF (SFace) of OpenCV 4.12 with the
                        int8bq files, SQLite
      ... native        the same, but images smaller than 640 pixels are not enlarged for the detector
      PACK equal        `facecrawl scan` with the models of one of these programs (research, compact,
                        opencv) in FP32, DETECTION_PASSES=single and --dedupe exact: the same work
      PACK default      the same with the settings that a user gets
      PACK in process   `facecrawl bench` of the pipeline with the settings of PACK equal: no crawl, no
                        database
    For crawls, processor time is counted from the request of the index page until the program exits.
    `cpu_seconds` includes child processes, such as Postgres, and all threads. `children_cpu_seconds`
    and `pool_cpu_seconds` are parts of it. `server_cpu_seconds` is separate."""
    folder = release()
    made, summary = mix(arguments.pictures, folder)
    with scratch() as place, serving(folder, made / "pictures") as (url, server):
        site = Crawled(url, server, arguments.pictures)
        models, others = link_models(arguments.models, place), programs(arguments.models, place)
        # AVIF needs ffmpeg, and one pass needs a multiple of eight images.
        decodable = sorted(file for file in (made / "pictures").iterdir() if file.suffix != ".avif")
        decodable = link(decodable[: len(decodable) // 8 * 8], place / "decodable")
        crawling = {"CRAWL_ALLOW_PRIVATE": "127.0.0.0/8", "CRAWL_DELAY_MS": "0"}
        found, pairs, within = {}, [], []
        for pack, other in SAME_MODELS.items():
            interpreter, selected = others[other]
            found[other] = lambda i=interpreter, a=selected: site.scrapy(i, *a)
            names = [other]
            if other != "insightface":
                found[f"{other} native"] = lambda i=interpreter, a=selected: site.scrapy(i, *a, "1")
                names.append(f"{other} native")
            equal, usual = settings(pack, models, **crawling, **EQUAL), settings(pack, models, **crawling)
            found[f"{pack} equal"] = lambda e=equal: site.facecrawl(folder / "facecrawl", place, e, "--dedupe", "exact")
            found[f"{pack} default"] = lambda e=usual: site.facecrawl(folder / "facecrawl", place, e)
            found[f"{pack} in process"] = lambda pack=pack: bench(folder, pack, models, decodable, **EQUAL)
            pairs += [(f"{pack} {kind}", name) for kind in ("equal", "default") for name in names]
            within += [(f"{pack} {kind}", f"{pack} in process") for kind in ("equal", "default")]
        results = rounds(found, arguments.rounds)
        statements = site.statements(folder / "facecrawl", place, settings("compact", models, **crawling))
    figures = ["pictures", "faces", "seconds", "images_per_second", "cpu_ms_per_image", "cpu_seconds", "children_cpu_seconds", "pool_cpu_seconds", "server_cpu_seconds", "duplicates", "skipped", "failed"]
    return {
        "mix": summary,
        "medians": medians(results, figures),
        "ratios": ratios(results, "images_per_second", pairs),
        "cpu_ratios": ratios(results, "cpu_ms_per_image", [pair[::-1] for pair in pairs]),
        "in_process_ratios": ratios(results, "images_per_second", within),
        "statements_of_compact_default": statements,
        "stages_in_process_ms": {name: samples[-1]["stages"] for name, samples in results.items() if "stages" in samples[-1]},
    }


e2e.options = {"pictures": (2000, "number of images")} | several(3) | OF_MODELS


def pipeline(arguments):
    """Measures images and faces per second from bytes to embeddings, compared with InsightFace's Python
    package and OpenCV. Every round runs each of these over the same images. Models are loaded and
    warmed up before the clock starts:
      insightface      FaceAnalysis (SCRFD 2.5G, MobileFaceNet) in one process with all cores
      insightface x2   the same in two processes that share the cores
      opencv           FaceDetectorYN (YuNet), warpAffine, MobileFaceNet in ONNX Runtime
      opencv_sface     FaceDetectorYN (YuNet) and FaceRecognizerSF (SFace) of OpenCV 4.12, from the
                       two int8bq files
      PACK             `facecrawl bench` with the models of one of these programs (research, compact,
                       opencv) in FP32, DETECTION_PASSES=single
      opencv-auto      the same with CPU_BACKEND=auto, the default: SFace in INT8 if the processor has
                       the instructions
      PACK-int8        the same with the packs of scripts/quantize, if `models` contains them
      PACK-bf16        the same with CPU_BACKEND=openvino-bf16, if ./scripts/openvino installed the
                       library
      PACK OPERATION   `facecrawl bench` of detection and embedding separately, from decoded pixels
    `PACK limit` is computed from the latter: the rate of a pipeline that spends time in its models
    only. The licences of the models apply: `research` is for non-commercial research only."""
    folder = release()
    with scratch() as place:
        models, others = link_models(arguments.models, place), programs(arguments.models, place)
        pictures = link_pictures(arguments.images, place)
        found, pairs, passes = {}, [], arguments.passes

        def other(name, processes=1):
            interpreter, selected = others[name]
            return lambda: last_json([interpreter, PEERS / "pipeline.py", pictures, passes, processes, *selected])

        def own_bench(pack, operation="pipeline", **more):
            return lambda: bench(folder, pack, models, pictures, passes, operation, **more)

        described = models / "packs.toml"
        made = {pack["name"] for pack in tomllib.loads(described.read_text())["pack"]} if described.exists() else set()
        fp32, bf16 = {"CPU_BACKEND": "onnxruntime"}, {"CPU_BACKEND": "openvino-bf16", "ORT_DYLIB_PATH": OPENVINO}
        for pack, same in SAME_MODELS.items():
            found[same] = other(same)
            variants = {pack: own_bench(pack, **fp32)}
            if pack == "opencv":
                variants["opencv-auto"] = own_bench(pack, CPU_BACKEND="auto")
            if f"{pack}-int8" in made:
                variants[f"{pack}-int8"] = own_bench(f"{pack}-int8", **fp32)
            if OPENVINO.exists():
                variants[f"{pack}-bf16"] = own_bench(pack, **bf16)
            # The name of a pack can be that of a program.
            variants = {f"pack {name}": run for name, run in variants.items()}
            names = [same]
            if same == "insightface":
                found["insightface x2"] = other(same, 2)
                names.append("insightface x2")
            pairs += [(name, theirs) for name in variants for theirs in names]
            found |= variants | {f"pack {pack} {operation}": own_bench(pack, operation, **fp32) for operation in ("face_detection", "face_embedding")}
        results = rounds(found, arguments.rounds)
    for pack in SAME_MODELS:
        parts = zip(*(results[f"pack {pack}{part}"] for part in ("", " face_detection", " face_embedding")))
        results[f"pack {pack} limit"] = [limit(*part) for part in parts]
    return {
        "medians": medians(results, ["images_per_second", "faces_per_second"]),
        "ratios": ratios(results, "images_per_second", pairs),
        "faces_ratios": ratios(results, "faces_per_second", pairs),
        "limit_ratios": ratios(results, "images_per_second", [(f"pack {pack}", f"pack {pack} limit") for pack in SAME_MODELS]),
    }


def limit(whole, detection, embedding):
    """Returns the rate with one detection per image and an embedding for each face."""
    faces = whole["faces_per_second"] / whole["images_per_second"]
    rate = 1 / (1 / detection["images_per_second"] + faces / embedding["images_per_second"])
    return {"images_per_second": rate, "faces_per_second": rate * faces}


pipeline.options = {"passes": (2, "number of passes over the folder per round")} | several(3) | IMAGES | OF_MODELS


def http(arguments):
    """Measures the rate and latency of `POST /faces/detect` for drawn portraits of 480x560 pixels. Each
    round measures these programs, the first two with each number of connections:
      insightface   FastAPI and uvicorn around FaceAnalysis (SCRFD 2.5G, MobileFaceNet), one process,
                    embeddings in the response
      research      `facecrawl up` with the same models, DETECTION_PASSES=single, embeddings in the
                    response
      in process    `facecrawl bench` of the pipeline with the same models: the same work without HTTP
                    and database
    The load generator runs on the same cores and takes the same share from each. It does not wait
    after an error, so with more connections than MAX_PENDING_IMAGES the rejected requests (429) cost
    processor time as well."""
    peer, folder = python("http", [*INSIGHTFACE_PACKAGES, "fastapi==0.165.0", "uvicorn==0.54.0"]), release()
    with scratch() as place:
        models, pictures = link_models(arguments.models, place), place / "portraits"
        pair = link_pair(arguments.models, place)
        draw(folder, "portraits", pictures, 8, 4)

        def load(base, connections, query=""):
            # A small load that is not counted warms the program up.
            for number, seconds in ((2, 2), (connections, arguments.seconds)):
                result = measure(folder, "load", f"{base}/faces/detect{query}", pictures, "--connections", number, "--seconds", seconds)
            if result["failed"]:
                say(f"{result['failed']} requests failed: {result['errors']}")
            return result

        def insightface(connections):
            with subprocess.Popen([peer, PEERS / "serve_insightface.py", pair], stdout=subprocess.PIPE, text=True) as process:
                try:
                    return load(next(line.strip() for line in process.stdout if line.startswith("http://")), connections)
                finally:
                    process.terminate()

        def research(connections):
            own_settings = {"MODEL_PACK": "research", "MODELS_DIR": models, "ACCEPT_LICENSE": "true", "DETECTION_PASSES": "single"}
            with service(folder, place / "data", **own_settings) as running:
                return load(running.base, connections, "?embeddings=true")

        found, pairs = {}, []
        for number in arguments.connections:
            found[f"insightface, {number}"] = lambda number=number: insightface(number)
            found[f"research, {number}"] = lambda number=number: research(number)
            pairs += [(f"research, {number}", f"insightface, {number}"), (f"research, {number}", "in process")]
        # Enough images for a run of several seconds.
        found["in process"] = lambda: bench(folder, "research", models, pictures, 25)
        results = rounds(found, arguments.rounds)
    figures = ["images_per_second", "faces_per_second", "p50_ms", "p99_ms", "failed"]
    return {"medians": medians(results, figures), "ratios": ratios(results, "images_per_second", pairs)}


http.options = {"connections": ([16], "numbers of connections"), "seconds": (20, "time of each measurement")} | several(3) | OF_MODELS


def memory(arguments):
    """Measures the resident memory of the service over many images. Posts images of the mix of `bench
    e2e`, except AVIF, to `/faces/detect` of a `facecrawl up` (compact pack). Reads the resident memory
    of the process, without the private Postgres, before and after every tenth of them."""
    folder = release()
    made, _ = mix(arguments.mix, folder)
    series, step = [], arguments.images // 10
    with scratch() as place, service(folder, place / "data", **compact(arguments.models, place)) as running:
        idle = resident_mb(running.process.pid)
        for part in range(1, 11):
            target = f"{running.base}/faces/detect"
            done = measure(folder, "load", target, made / "pictures", "--connections", arguments.connections, "--count", step)
            if done["failed"]:
                sys.exit(f"bench: {done['errors']}")
            series.append({"images": step * part, "resident_mb": round(resident_mb(running.process.pid), 1)})
            say(f"{series[-1]}, {done['images_per_second']:.1f} images/s")
    halves = [statistics.mean(one["resident_mb"] for one in half) for half in (series[:5], series[5:])]
    return {"idle_mb": round(idle, 1), "series": series, "second_half_over_first": round(halves[1] / halves[0], 3)}


memory.options = {"images": (10_000, "number of requests"), "mix": (400, "number of different images"), "connections": (16, "number of connections")} | OF_MODELS


def startup(arguments):
    """Measures the time until the service is ready, and its resident memory then. Starts `facecrawl up`
    (compact pack) on an empty folder, with models copied from their folder, and again on the
    resulting folder:
      first   the private Postgres is created and migrated, the models are copied and verified
      again   the private Postgres starts, the models are verified
    In both cases the models are loaded and warmed up. The service is ready when it reports so and its
    port is open."""
    folder = release()
    seconds, idle = {"first": [], "again": []}, []
    for _ in range(arguments.rounds):
        with scratch() as place:
            for times in seconds.values():
                with service(folder, place / "data", **compact(arguments.models, place)) as running:
                    times.append(round(running.seconds, 2))
                    idle.append(resident_mb(running.process.pid))
    ready = {start: {"median": statistics.median(times), "rounds": times} for start, times in seconds.items()}
    return {"ready_seconds": ready, "idle_mb": round(statistics.median(idle), 1)}


startup.options = several(5) | OF_MODELS


def film(folder, minutes):
    """Returns a film of 1080p and 25 frames per second with a keyframe every two seconds."""
    path = ROOT / ".runtime/bench" / f"film-{minutes}.mp4"
    if not path.exists():
        say(f"making {path.relative_to(ROOT)}")
        path.parent.mkdir(parents=True, exist_ok=True)
        # A film that is not complete must not be used later.
        unfinished = path.with_name(f"unfinished-{path.name}")
        draw(folder, "film", unfinished, "--width", 1920, "--height", 1080, "--minutes", minutes)
        unfinished.rename(path)
    return path


def video(arguments):
    """Measures the analysis of a drawn film, compared with loops over its frames as people write them
    today. Every round runs each of these on two processors. Models are loaded and used before the
    clock starts:
      PROGRAM loop       cv2.VideoCapture and a program of `bench pipeline` on every frame
      PROGRAM keyframes  PyAV with the same programs on keyframes
      PACK fps=5, PACK auto
                         `facecrawl bench --operation video` with the same models in FP32
    The loops read the first `slice` seconds of the film, because their speed does not change."""
    folder = release()
    path = film(folder, arguments.minutes)
    # The programs inherit this, and choose their numbers of threads accordingly.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    found, pairs = {}, []
    with scratch() as place:
        models, others = link_models(arguments.models, place), programs(arguments.models, place)

        def own_bench(pack, sampling):
            command = [folder / "facecrawl", "bench", "--no-gpu", "--operation", "video", path, "--sampling", sampling, "--iterations", 1, "--json", "-"]
            side = last_json(command, env=settings(pack, models, CPU_BACKEND="onnxruntime"))["benchmark_results"]["video"][sampling]["gpu_false"]
            cpu, alone = (part["service"] + part["decoder"] for part in (side["cpu_seconds_per_minute"], side["decoding"]["cpu_seconds_per_minute"]))
            named = {"times_real_time": side["times_real_time"]["median"], "cpu_seconds_per_minute": cpu, "decode_cpu_seconds_per_minute": alone}
            named["peak_resident_mb"] = side["resident_bytes"]["peak_together"] / 1e6
            return named | {key: side[key] for key in ("frames", "faces", "share_of_decode_limit")}

        for pack, other in SAME_MODELS.items():
            interpreter, selected = others[other]
            for reader, seconds in (("loop", arguments.slice), ("keyframes", 0)):
                command = [interpreter, "-W", "ignore", PEERS / "video_loop.py", reader, path, seconds, *selected]
                found[f"{other} {reader}"] = lambda command=command: last_json(command)
            for sampling in ("fps=5", "auto"):
                found[f"pack {pack} {sampling}"] = lambda pack=pack, sampling=sampling: own_bench(pack, sampling)
                pairs += [(f"pack {pack} {sampling}", f"{other} {reader}") for reader in ("loop", "keyframes")]
        results = rounds(found, arguments.rounds)
    figures = ["times_real_time", "cpu_seconds_per_minute", "frames", "faces", "share_of_decode_limit", "peak_resident_mb", "decode_cpu_seconds_per_minute"]
    return {
        "medians": medians(results, figures),
        "ratios": ratios(results, "times_real_time", pairs),
        "cpu_ratios": ratios(results, "cpu_seconds_per_minute", [pair[::-1] for pair in pairs]),
    }


video.options = {"minutes": (5, "length of the film"), "slice": (50.0, "seconds of the film that the loops read")} | several(3) | OF_MODELS

ALL = {benchmark.__name__: benchmark for benchmark in (e2e, pipeline, http, crawl, startup, memory, video)}
