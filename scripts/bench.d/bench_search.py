"""Measures search in --faces synthetic faces of 128 dimensions in clusters, in the schema of the
product. Reports recall@10 against the exact result, and p50 and p99 in three cases: alone, with a
filter that keeps one in a hundred, and while --writes faces per second are stored. Also reports the
build time and the size of the index.

With --engine edge, the index is in files, as with SEARCH_INDEX=edge. With --engine qdrant, it is in
the Qdrant server of --qdrant. `--rate N` runs N searches per
second while faces are stored. Without it, each search starts when the previous one ends.

Creates its own database on the private Postgres of `facecrawl up`, with its usual settings. Storing
and indexing a million faces takes about twenty minutes and 3 GB of disk.
"""
import argparse
import json
import pathlib
import tempfile

from _build import ROOT, release as build_release
from _postgres import private_postgres
from _run import last_json


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "../shared/models", help="the models of the compact pack")
    sizes = {"faces": 1_000_000, "probes": 200, "searches": 2000, "writes": 200, "rate": 0, "dimensions": 128, "tenants": 1, "exact-limit": 50_000}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--index", help="storage parameters of the index instead of the default ones, such as 'm = 16, ef_construction = 64'")
    parser.add_argument("--engine", choices=["pgvector", "edge", "qdrant"], default="pgvector")
    parser.add_argument("--qdrant", help="addresses of the gRPC interface of the Qdrant server, comma-separated")
    parser.add_argument("--quantization", choices=["none", "int8"], default="none", help="how the server stores embeddings")
    parser.add_argument("--replicas", type=int, default=1, help="number of nodes that store each face")
    arguments = parser.parse_args()
    release = build_release()
    with private_postgres(release, arguments.models) as url, tempfile.TemporaryDirectory() as folder:
        command = [release / "examples/gallery", "--url", url]
        for name in sizes:
            command += [f"--{name}", getattr(arguments, name.replace("-", "_"))]
        if arguments.engine == "edge":
            command += ["--engine", "edge", "--folder", folder]
        if arguments.engine == "qdrant":
            command += ["--engine", "qdrant", "--qdrant", arguments.qdrant]
            command += ["--quantization", arguments.quantization, "--replicas", arguments.replicas]
        if arguments.index:
            command += ["--index", arguments.index]
        print(json.dumps(last_json(command), indent=2))


if __name__ == "__main__":
    main()
