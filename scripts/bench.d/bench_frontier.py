"""Simulates the frontier with very many hosts. Four crawls have hosts of very different size, some
of them slow, dead or busy, in simulated time. The run uses the queue, partition keys and per-host
permits of the product on the private Postgres of `facecrawl up`. It reports politeness and fairness
for each number of --hosts, and the cost of a claim.

A complete run of a million hosts takes hours and 3 GB of disk. docs/explanation/SCALING.md explains what the
figures mean and what they do not prove.
"""
import argparse
import json
import pathlib

from _build import ROOT, environment, release as build_release
from _postgres import private_postgres
from _run import last_json


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "../shared/models", help="the models of the compact pack")
    parser.add_argument("--hosts", nargs="+", default=["1000", "10000", "1000000:50000"], help="numbers of hosts, each at least 100; HOSTS:REQUESTS ends after that number of requests")
    arguments = parser.parse_args()
    release = build_release()
    with private_postgres(release, arguments.models) as url:
        command = [release / "examples/frontier", *arguments.hosts]
        print(json.dumps(last_json(command, env=environment(TEST_DATABASE_URL=url)), indent=2))


if __name__ == "__main__":
    main()
