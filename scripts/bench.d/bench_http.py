"""Measures `POST /faces/detect` at 16 connections, compared with the in-process rate and with
FastAPI and uvicorn around InsightFace.

Every round runs over the same images:
  insightface   FastAPI and uvicorn around FaceAnalysis (SCRFD 2.5G, MobileFaceNet), one process,
                embeddings in the response
  research      `facecrawl up` with the same models, DETECTION_PASSES=single, embeddings in the
                response
  in-process    `facecrawl bench` of the pipeline with the same models: the same work without HTTP
                and database
The load generator is an example of this project. It runs on the same cores and takes the same share
from each. Errors are counted.
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
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    peer = python("http", [*PIPELINE_PACKAGES, "fastapi==0.165.0", "uvicorn==0.54.0"])
    release = build_release()
    with tempfile.TemporaryDirectory(prefix="facecrawl-bench-", ignore_cleanup_errors=True) as scratch:
        scratch = pathlib.Path(scratch)
        models, pair = link_models(arguments.models, scratch)
        pictures = link_pictures(arguments.images, scratch)

        def load(base, query=""):
            url = f"{base}/faces/detect{query}"
            return last_json([release / "examples/load", url, pictures, arguments.connections, arguments.seconds])

        def insightface():
            with subprocess.Popen([peer, PEERS / "insightface_http.py", pair], stdout=subprocess.PIPE, text=True) as process:
                try:
                    base = next(line.strip() for line in process.stdout if line.startswith("http://"))
                    load_once(release, base, pictures)
                    return load(base)
                finally:
                    process.terminate()

        def research():
            settings = {"MODEL_PACK": "research", "MODELS_DIR": str(models), "ACCEPT_LICENSE": "true", "DETECTION_PASSES": "single"}
            with service(release, scratch / "data", **settings) as running:
                load_once(release, running.base, pictures)
                return load(running.base, "?embeddings=true")

        contestants = {
            "insightface": insightface,
            "research": research,
            "in-process": lambda: bench(release, "research", models, pictures, 2),
        }
        results = rounds(contestants, arguments.rounds)
    for name, samples in results.items():
        failed = sum(sample.get("failed", 0) for sample in samples)
        if failed:
            say(f"{name}: {failed} requests failed: {[sample['errors'] for sample in samples]}")
    report = {
        "operation": "http",
        "connections": arguments.connections,
        "medians": medians(results, ["images_per_second", "faces_per_second", "p50_ms", "p99_ms", "failed"]),
        "ratios": {
            f"research / {other}": ratios(results, "images_per_second", "research", other) for other in ("insightface", "in-process")
        },
    }
    print(json.dumps(report, indent=2))


def load_once(release, base, pictures):
    """Sends a small uncounted load, so that every program is warm when it is measured."""
    last_json([release / "examples/load", f"{base}/faces/detect", pictures, 2, 2])


if __name__ == "__main__":
    main()
