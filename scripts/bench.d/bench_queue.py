"""Measures the queue alone: jobs per second through claim and completion, with an empty queue and
with a backlog of --backlog other due jobs.

Creates its own database on the private Postgres of `facecrawl up`, with its usual settings and full
durability. The two cases are measured in turn. The ratio is more meaningful than the figures.
"""
import argparse
import json
import pathlib

from _build import ROOT, release as build_release
from _postgres import private_postgres
from _run import last_json


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "../shared/models", help="the models of the compact pack")
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--backlog", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    release = build_release()
    sizes = [("--jobs", arguments.jobs), ("--backlog", arguments.backlog), ("--workers", arguments.workers), ("--rounds", arguments.rounds)]
    with private_postgres(release, arguments.models) as url:
        command = [release / "examples/throughput", "--url", url, *(part for pair in sizes for part in pair)]
        print(json.dumps(last_json(command), indent=2))


if __name__ == "__main__":
    main()
