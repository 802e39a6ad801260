"""Measures the rate and latency of `POST /faces/detect`, compared with the in-process rate and with
FastAPI and uvicorn around InsightFace.

The images are the photographs, or with --portraits drawn portraits of 480x560 pixels. Each round
measures these programs, the first two with each number of --connections:
  insightface   FastAPI and uvicorn around FaceAnalysis (SCRFD 2.5G, MobileFaceNet), one process,
                embeddings in the response
  research      `facecrawl up` with the same models, DETECTION_PASSES=single, embeddings in the
                response
  in-process    `facecrawl bench` of the pipeline with the same models: the same work without HTTP
                and database
The load generator is an example of this project. It runs on the same cores and takes the same share
from each. It does not wait after an error, so with more connections than MAX_PENDING_IMAGES the
rejected requests (429) cost processor time as well. Errors are counted.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

from _build import ROOT, release as build_release, say
from _packs import PIPELINE_PACKAGES, bench, link_models, link_pictures
from _rivals import PEERS, python
from _run import last_json, medians, ratios, rounds
from _service import service


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=pathlib.Path, default=ROOT / "../shared/images", help="a folder of photographs")
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "../shared/models", help="scrfd_2.5g_bnkps and mobilefacenet")
    parser.add_argument("--portraits", action="store_true", help="send drawn portraits instead of the photographs")
    parser.add_argument("--connections", type=int, nargs="+", default=[16])
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    peer = python("http", [*PIPELINE_PACKAGES, "fastapi==0.165.0", "uvicorn==0.54.0"])
    release = build_release()
    with tempfile.TemporaryDirectory(prefix="facecrawl-bench-", ignore_cleanup_errors=True) as scratch:
        scratch = pathlib.Path(scratch)
        models, pair = link_models(arguments.models, scratch)
        if arguments.portraits:
            pictures = scratch / "portraits"
            subprocess.run([release / "examples/portraits", pictures, "8", "4"], check=True)
        else:
            pictures = link_pictures(arguments.images, scratch)

        def load(base, connections, query=""):
            url = f"{base}/faces/detect{query}"
            return last_json([release / "examples/load", url, pictures, connections, arguments.seconds])

        def insightface(connections):
            with subprocess.Popen([peer, PEERS / "insightface_http.py", pair], stdout=subprocess.PIPE, text=True) as process:
                try:
                    base = next(line.strip() for line in process.stdout if line.startswith("http://"))
                    load_once(release, base, pictures)
                    return load(base, connections)
                finally:
                    process.terminate()

        def research(connections):
            settings = {"MODEL_PACK": "research", "MODELS_DIR": str(models), "ACCEPT_LICENSE": "true", "DETECTION_PASSES": "single"}
            with service(release, scratch / "data", **settings) as running:
                load_once(release, running.base, pictures)
                return load(running.base, connections, "?embeddings=true")

        contestants = {}
        for number in arguments.connections:
            contestants[f"insightface, {number}"] = lambda number=number: insightface(number)
            contestants[f"research, {number}"] = lambda number=number: research(number)
        # Enough images for a run of several seconds.
        passes = max(2, 800 // len(list(pictures.iterdir()))) if arguments.portraits else 2
        contestants["in-process"] = lambda: bench(release, "research", models, pictures, passes)
        results = rounds(contestants, arguments.rounds)
    for name, samples in results.items():
        failed = sum(sample.get("failed", 0) for sample in samples)
        if failed:
            say(f"{name}: {failed} requests failed: {[sample['errors'] for sample in samples]}")
    report = {
        "operation": "http",
        "medians": medians(results, ["images_per_second", "faces_per_second", "p50_ms", "p99_ms", "failed"]),
        "ratios": {
            f"research, {number} / {other}": ratios(results, "images_per_second", f"research, {number}", other)
            for number in arguments.connections
            for other in (f"insightface, {number}", "in-process")
        },
    }
    print(json.dumps(report, indent=2))


def load_once(release, base, pictures):
    """Sends a small uncounted load, so that every program is warm when it is measured."""
    last_json([release / "examples/load", f"{base}/faces/detect", pictures, 2, 2])


if __name__ == "__main__":
    main()
