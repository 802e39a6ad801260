"""Measures search in --faces synthetic faces of 128 dimensions in clusters, in the schema of the
product. Reports recall@10 against the exact result, and p50 and p99 in three cases: alone, with a
filter that keeps a tenth, and while --writes faces per second are stored. Also reports the
build time and the size of the index.

--engine measures one index, or several with the same faces, one after the other: pgvector, qdrant,
and exact for none, comma-separated. qdrant is the Qdrant server of --qdrant. `--rate N` runs N
searches per second while faces are stored. Without it, each search starts when the previous one
ends.

Creates its own database on the private Postgres of `facecrawl up`, with its usual settings. Storing
and indexing a million faces takes about twenty minutes and 3 GB of disk.
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
    sizes = {"faces": 1_000_000, "probes": 200, "searches": 2000, "writes": 200, "rate": 0, "dimensions": 128, "tenants": 1, "exact-limit": 50_000}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--engine", default="pgvector", help="exact, pgvector or qdrant, or a comma-separated list of them")
    texts = {
        "qdrant": "addresses of the gRPC interface of the Qdrant server, comma-separated",
        "quantization": "how the server stores embeddings: none (the default) or int8",
        "replicas": "number of nodes that store each face",
        "graph-threshold": "size of the embeddings of a part of a Qdrant collection above which it has a graph, in kB",
        "server-pid": "process id of the Qdrant server, to report its memory",
        "server-folder": "folder of the Qdrant server, to report its size",
        "variance-ratio": "variance of a component divided by that of the previous one, 1 by default; 0.957 gives 128 components the effective number of dimensions of real embeddings, 45",
        "index": "storage parameters of pgvector's index instead of the default ones, such as 'm = 16, ef_construction = 64'",
    }
    for name, text in texts.items():
        parser.add_argument(f"--{name}", help=text)
    arguments = parser.parse_args()
    release = build_release()
    with private_postgres(release, arguments.models) as url:
        command = [release / "examples/gallery", "--url", url, "--engine", arguments.engine]
        for name in [*sizes, *texts]:
            if (value := getattr(arguments, name.replace("-", "_"))) is not None:
                command += [f"--{name}", value]
        print(json.dumps(last_json(command), indent=2))


if __name__ == "__main__":
    main()
