"""Measures a crawl from a URL to stored faces over a realistic mix of images, compared with Scrapy
and the libraries that a user would combine with it.

The formats, sizes and bytes per pixel of the mix resemble those of the web, and three quarters of
its images have no face (docs/measurements/MIX.md). It is made once. The example `serve_folder`
serves it from memory.
Every round runs each of these, with an empty database where one is used:
  insightface        Scrapy, InsightFace (SCRFD 2.5G, MobileFaceNet, det_size 640), SQLite
  opencv             Scrapy, FaceDetectorYN (YuNet), warpAffine, MobileFaceNet in ONNX Runtime, SQLite
  opencv native      the same, but images smaller than 640 pixels are not enlarged for the detector
  sface              Scrapy, FaceDetectorYN and FaceRecognizerSF (SFace) of OpenCV 4.12 with the int8bq
                     files, SQLite
  sface native       the same, but small images are not enlarged
  research, compact, opencv pack
                     `facecrawl scan URL` with the models of insightface, opencv and sface, in FP32,
                     DETECTION_PASSES=single and --dedupe exact: the same work as theirs
  PACK default       the same pack with the settings that a user gets: DETECTION_PASSES=auto,
                     CPU_BACKEND=auto, --dedupe near
  opencv pack auto   the equal work with CPU_BACKEND=auto
  opencv pack folder `facecrawl scan FOLDER` with the settings of `opencv pack`; its processor time
                     includes the start
  PACK in process    `facecrawl bench` of the pipeline with the settings of PACK: no crawl, no database
For crawls, processor time is counted from the request of the index page until the program exits.
`cpu_seconds` includes child processes, such as Postgres, and all threads. `children_cpu_seconds` and
`pool_cpu_seconds` are parts of it. `server_cpu_seconds` is separate. The report contains medians over
the rounds, and the medians of the ratios within each round.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import threading

from _build import ROOT, environment, release as build_release, say
from _cpu import Measured, own
from _mix import mix, summary
from _packs import OPENCV_PACKAGES, PIPELINE_PACKAGES, bench, link_models
from _rivals import PEERS, python
from _run import medians, ratios, rounds

CRAWL_PACKAGES = ["scrapy==2.19.0", "pillow==13.0.0"]
RIVALS = {"research": ["insightface"], "compact": ["opencv", "opencv native"], "opencv pack": ["sface", "sface native"]}
EQUAL = {"CPU_BACKEND": "onnxruntime", "DETECTION_PASSES": "single"}
FIGURES = ["pictures", "faces", "seconds", "pictures_per_second", "images_per_second", "cpu_ms_per_picture", "cpu_ms_per_image"]
FIGURES += ["cpu_seconds", "children_cpu_seconds", "pool_cpu_seconds", "server_cpu_seconds", "duplicates", "skipped", "failed"]


class Site:
    """A web server with the images of a folder, for a `with` block."""

    def __init__(self, release, folder):
        self.command = [release / "examples/serve_folder", folder, "10"]
        self.pictures = len(list(folder.iterdir()))

    def __enter__(self):
        self.server = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        self.url = self.server.stdout.readline().strip()
        self.program = None
        self.listener = threading.Thread(target=self.listen, daemon=True)
        self.listener.start()
        return self

    def __exit__(self, *_):
        self.server.terminate()
        self.server.wait()

    def listen(self):
        for _ in self.server.stdout:
            self.program.begin()

    def measure(self, command, **options):
        """Returns what the program reports, with its processor time and that of the server."""
        before = own(self.server.pid)
        self.program = Measured(command, **options)
        return self.program.last_json() | {"server_cpu_seconds": round(own(self.server.pid) - before, 2)}


def rates(result):
    """Adds `pictures_per_second` and `cpu_ms_per_picture`. `pictures` is the number of images that were
    decoded or recognised as duplicates."""
    if result["pictures"] == 0:
        sys.exit(f"bench: no image was processed: {result}")
    return result | {
        "pictures_per_second": result["pictures"] / result["seconds"],
        "cpu_ms_per_picture": 1e3 * result["cpu_seconds"] / result["pictures"],
    }


def facecrawl(release, site, scratch, models, pack, *options, where=None, **settings):
    """Runs `facecrawl scan` on the site, or on the folder `where`, with an empty database. Its files
    stay in `scratch` until all runs have ended: for minutes after many files were deleted, ext4 takes
    longer to create new ones."""
    limits = [] if where else ["--max-pages", str(site.pictures), "--max-images", str(site.pictures)]
    own_settings = {"MODEL_PACK": pack, "MODELS_DIR": str(models), "ACCEPT_LICENSE": "true", "LOG_LEVEL": "error"}
    crawling = {"CRAWL_ALLOW_PRIVATE": "127.0.0.0/8", "CRAWL_DELAY_MS": "0"}
    command = [release / "facecrawl", "--data-dir", tempfile.mkdtemp(dir=scratch), "scan", where or site.url, "--json", *limits, *options]
    answer = site.measure(command, env=environment(**own_settings, **crawling, **settings))
    images = answer["images"]
    counts = {"pictures": images["processed"] + images["duplicate"], "duplicates": images["duplicate"]}
    counts |= {key: images[key] for key in ("skipped", "failed")} | {"faces": answer["faces"], "seconds": answer["seconds"]}
    return rates(counts | {key: value for key, value in answer.items() if key.endswith("cpu_seconds")})


def rival(interpreter, site, pipeline, *models):
    with tempfile.TemporaryDirectory(prefix="facecrawl-bench-") as folder:
        database = pathlib.Path(folder) / "faces.sqlite"
        answer = site.measure([interpreter, PEERS / "scrapy_faces.py", site.url, database, pipeline, *models])
    if answer["failed"]:
        say(f"{pipeline} failed with {answer['failed']} images: {answer['failures']}")
    # The program has no child processes, so this figure is only measurement error.
    del answer["children_cpu_seconds"]
    return rates(answer)


def for_bench(folder, scratch):
    """Returns a folder for `facecrawl bench`: without AVIF, which not every build decodes, and
    with a multiple of eight images, so that one pass is enough."""
    target = pathlib.Path(tempfile.mkdtemp(dir=scratch))
    names = sorted(picture.name for picture in folder.iterdir() if picture.suffix != ".avif")
    for name in names[: len(names) // 8 * 8]:
        (target / name).symlink_to((folder / name).resolve())
    return target


def contestants(release, site, folder, scratch, models):
    """Returns name -> function."""
    own_models, pair = link_models(models, scratch)
    peer, opencv = python("e2e", [*PIPELINE_PACKAGES, *CRAWL_PACKAGES]), python("e2e-opencv", [*OPENCV_PACKAGES, *CRAWL_PACKAGES])
    plain = [models / "face_detection_yunet_2023mar.onnx", models / "mobilefacenet.onnx"]
    blocks = [models / f"{name}_int8bq.onnx" for name in ("face_detection_yunet_2023mar", "face_recognition_sface_2021dec")]
    exact = ["--dedupe", "exact"]

    def scan(*options, **settings):
        return lambda: facecrawl(release, site, scratch, own_models, *options, **settings)

    found = {
        "insightface": lambda: rival(peer, site, "insightface_pipeline", pair),
        "opencv": lambda: rival(peer, site, "opencv_pipeline", *plain),
        "opencv native": lambda: rival(peer, site, "opencv_pipeline", *plain, "1"),
        "sface": lambda: rival(opencv, site, "opencv_sface_pipeline", *blocks),
        "sface native": lambda: rival(opencv, site, "opencv_sface_pipeline", *blocks, "1"),
    }
    for pack in RIVALS:
        name = pack.removesuffix(" pack")
        found[pack] = scan(name, *exact, **EQUAL)
        found[f"{pack} default"] = scan(name)
    auto = EQUAL | {"CPU_BACKEND": "auto"}
    found["opencv pack auto"] = scan("opencv", *exact, **auto)
    found["opencv pack folder"] = scan("opencv", *exact, where=folder, **EQUAL)
    decodable = for_bench(folder, scratch)
    for pack in RIVALS:
        name = pack.removesuffix(" pack")
        found[f"{pack} in process"] = lambda name=name: bench(release, name, own_models, decodable, 1, **EQUAL)
    found["opencv pack auto in process"] = lambda: bench(release, "opencv", own_models, decodable, 1, **auto)
    return found


def report(results):
    """Returns medians, ratios to the programs for comparison, and shares of the rate in process."""
    own_names = [name for name in results if any(name.startswith(pack) for pack in RIVALS) and "pictures_per_second" in results[name][0]]
    pairs = [(name, other) for name in own_names for pack, others in RIVALS.items() if name.startswith(pack) for other in others if other in results]
    for samples in results.values():
        for one in samples:
            one.setdefault("pictures_per_second", one.get("images_per_second"))
    within = {name: f"{name} in process" for name in own_names if f"{name} in process" in results}
    return {
        "medians": medians(results, FIGURES),
        "ratios": {f"{mine} / {other}": ratios(results, "pictures_per_second", mine, other) for mine, other in pairs},
        "cpu_ratios": {f"{other} / {mine}": ratios(results, "cpu_ms_per_picture", other, mine) for mine, other in pairs},
        "shares_of_the_rate_in_process": {name: ratios(results, "pictures_per_second", name, other) for name, other in within.items()},
        "stages_in_process_ms": {name: samples[-1]["stages"] for name, samples in results.items() if "stages" in samples[-1]},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", metavar="NAMES", help="run only these, separated by commas")
    parser.add_argument("--faceless", action="store_true", help="also run everything on the images without a face alone")
    parser.add_argument("--photographs", type=pathlib.Path, metavar="FOLDER", help="make the images with faces from these photographs instead of drawn people")
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "../shared/models", help="the models of `bench pipeline`")
    arguments = parser.parse_args()
    if not arguments.models.is_dir() or not (arguments.photographs or arguments.models).is_dir():
        sys.exit("bench: --models and --photographs must be folders")
    release = build_release()
    made = mix(arguments.pictures, release, arguments.photographs)
    answer = {"operation": "e2e", "mix": summary(made)}
    for part in ["pictures", *["faceless"][: arguments.faceless]]:
        with tempfile.TemporaryDirectory(prefix="facecrawl-bench-", ignore_cleanup_errors=True) as scratch, Site(release, made / part) as site:
            say(f"{site.pictures} {part} at {site.url}")
            every = contestants(release, site, made / part, pathlib.Path(scratch), arguments.models.resolve())
            names = arguments.only.split(",") if arguments.only else list(every)
            if unknown := [name for name in names if name not in every]:
                sys.exit(f"bench: unknown: {', '.join(unknown)}; the names are: {', '.join(every)}")
            answer[part] = report(rounds({name: every[name] for name in names}, arguments.rounds))
    print(json.dumps(answer, indent=2))


if __name__ == "__main__":
    main()
