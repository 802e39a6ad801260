"""Measures the resident memory of the service over many images, without a comparison.

Posts --images images to `/faces/detect` of a `facecrawl up` (compact pack) over --connections
connections. Reads the resident memory of the process (without the private Postgres) before and
after every tenth of them. The images are typical web images made from the photographs, with a
longer side of 200 to --longest pixels, or with --mix the images of `bench e2e`. The allocator has
the settings of scripts/run and of the container images.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

from _build import ROOT, release as build_release, say
from _mix import mix
from _packs import PIPELINE_PACKAGES
from _rivals import PEERS, python
from _run import last_json
from _service import compact, resident_mb, service


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images-from", type=pathlib.Path, default=ROOT / "../shared/images", help="a folder of photographs")
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "../shared/models", help="the models of the compact pack")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--mix", type=int, default=0, metavar="N", help="send the N images that `bench e2e` makes, except AVIF; --longest does not apply")
    parser.add_argument("--longest", type=int, default=1600, help="longest side of the images, in pixels")
    parser.add_argument("--connections", type=int, default=16)
    arguments = parser.parse_args()
    peer = python("pipeline", PIPELINE_PACKAGES)
    release = build_release()
    with tempfile.TemporaryDirectory(prefix="facecrawl-bench-", ignore_cleanup_errors=True) as scratch:
        scratch = pathlib.Path(scratch)
        if arguments.mix:
            pictures = mix(arguments.mix, release) / "pictures"
        else:
            pictures = scratch / "pictures"
            pictures.mkdir()
            make = [peer, PEERS / "web_like.py", arguments.images_from, pictures, "200", str(arguments.longest)]
            subprocess.run(make, check=True)
        series = []
        with service(release, scratch / "data", **compact(arguments.models, scratch)) as running:
            idle = resident_mb(running.process.pid)
            while len(series) < 10:
                step = arguments.images // 10
                done = last_json([release / "examples/load", f"{running.base}/faces/detect", pictures, arguments.connections, 3600, step])
                if done["failed"]:
                    raise SystemExit(f"bench: {done['errors']}")
                series.append({"images": step * (len(series) + 1), "resident_mb": round(resident_mb(running.process.pid), 1)})
                say(f"{series[-1]}, {done['images_per_second']:.1f} images/s")
    halves = [statistics.mean(one["resident_mb"] for one in half) for half in (series[:5], series[5:])]
    report = {
        "operation": "memory",
        "idle_mb": round(idle, 1),
        "series": series,
        "second_half_over_first": round(halves[1] / halves[0], 3),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
