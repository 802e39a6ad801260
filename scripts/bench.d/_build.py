"""Release builds of what is measured, all by one command: built one by one, each would have its dependencies with other features and
build them anew."""
import os
import pathlib
import subprocess
import sys

# Modules that other scripts use too.
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from environments import ROOT

PACKAGES = ["facecrawl", "facecrawl-crawler", "facecrawl-pipeline", "facecrawl-queue", "facecrawl-store", "facecrawl-testing"]
TARGETS = ["--bin", "facecrawl", "--example", "download", "--example", "frontier", "--example", "throughput", "--example", "gallery", "--example", "bench_site", "--example", "load"]


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


def environment(**settings):
    """The environment of a program of ours: this checkout as its root, `settings`, and never the database of whoever measures."""
    own = dict(os.environ, FACECRAWL_ROOT=str(ROOT), **settings)
    own.pop("DATABASE_URL", None)
    return own


def release():
    """The folder with the binary; the examples lie in `examples` there."""
    for name in (".env", "facecrawl.toml"):
        if (ROOT / name).exists():
            say(f"the {name} of this checkout applies to what is measured")
    say("building (the first build takes some minutes)")
    packages = [argument for package in PACKAGES for argument in ("--package", package)]
    subprocess.run(["cargo", "build", "--release", "--locked", "--quiet", *packages, *TARGETS], check=True, cwd=ROOT)
    return ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release"
