"""Builds everything that is measured, in release mode and with one command. In separate builds, the
dependencies would have other features and would be compiled again."""
import os
import pathlib
import subprocess
import sys

# Modules that other scripts share.
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "lib"))
from environments import ROOT

PACKAGES = ["facecrawl", "facecrawl-crawler", "facecrawl-pipeline", "facecrawl-queue", "facecrawl-store", "facecrawl-testing"]
TARGETS = ["--bin", "facecrawl", "--example", "download", "--example", "frontier", "--example", "throughput", "--example", "gallery", "--example", "bench_site", "--example", "serve_folder", "--example", "paint_people", "--example", "portraits", "--example", "load", "--example", "film"]


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


def environment(**settings):
    """Returns the environment of a program of this project: this checkout as its root, `settings`,
    and never the user's own database."""
    own = dict(os.environ, FACECRAWL_ROOT=str(ROOT), **settings)
    own.pop("DATABASE_URL", None)
    return own


def release():
    """Builds and returns the folder with the binary. The examples are in its subfolder `examples`.
    If BENCH_RELEASE is set, returns that folder and builds nothing."""
    for name in (".env", "facecrawl.toml"):
        if (ROOT / name).exists():
            say(f"the {name} of this checkout applies to what is measured")
    if "BENCH_RELEASE" in os.environ:
        return pathlib.Path(os.environ["BENCH_RELEASE"])
    say("building (the first build takes some minutes)")
    packages = [argument for package in PACKAGES for argument in ("--package", package)]
    subprocess.run(["cargo", "build", "--release", "--locked", "--quiet", *packages, *TARGETS], check=True, cwd=ROOT)
    return ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release"
