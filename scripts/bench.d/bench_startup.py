"""Measures the time until the service is ready, and its resident memory then, without a comparison.

Starts `facecrawl up` (compact pack) --rounds times on an empty folder, with models copied from
their folder, and as often again on the resulting folder:
  first   the private Postgres is created and migrated, the models are copied and verified
  again   the cluster starts, the models are verified
In both cases the models are loaded and warmed up. The service is ready when it reports so and its
port is open.
"""
import argparse
import json
import pathlib
import statistics
import tempfile

from _build import ROOT, release as build_release, say
from _service import compact, resident_mb, service


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "../shared/models", help="the models of the compact pack")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    release = build_release()
    seconds, idle = {"first": [], "again": []}, []
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory(prefix="facecrawl-bench-", ignore_cleanup_errors=True) as scratch:
            scratch = pathlib.Path(scratch)
            for start in seconds:
                with service(release, scratch / "data", **compact(arguments.models, scratch)) as running:
                    seconds[start].append(round(running.seconds, 2))
                    idle.append(resident_mb(running.process.pid))
    say(f"ready after {seconds} s")
    report = {
        "operation": "startup",
        "ready_seconds": {start: {"median": statistics.median(all_), "rounds": all_} for start, all_ in seconds.items()},
        "idle_mb": round(statistics.median(idle), 1),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
