"""Provides the images of `bench e2e`. They are made once and kept in .runtime/bench."""
import hashlib
import json
import shutil
import subprocess

from _build import ROOT, say
from _rivals import PEERS, python

# Other versions could encode other bytes.
MIX_PACKAGES = ["pillow==13.0.0", "numpy==2.4.6"]
SEED = 1


def mix(count, release, photographs=None):
    """Returns the folder with `count` images in `pictures`, those without a face in `faceless`, and
    the composition in mix.json. Makes them again if the program that makes them or the photographs
    have changed."""
    folder = ROOT / ".runtime/bench" / f"mix-{count}{'-photographs' if photographs else ''}"
    made_by, wanted = folder / "made-by", digest(photographs)
    if not made_by.exists() or made_by.read_text() != wanted:
        say(f"making {count} images in {folder.relative_to(ROOT)}")
        shutil.rmtree(folder, ignore_errors=True)
        arguments = [folder, str(count), str(SEED), release / "examples/paint_people", *([photographs] if photographs else [])]
        subprocess.run([python("mix", MIX_PACKAGES), PEERS / "mix.py", *arguments], check=True, stdout=subprocess.DEVNULL)
        made_by.write_text(wanted)
    return folder


def summary(folder):
    return json.loads((folder / "mix.json").read_text())["summary"]


def digest(photographs):
    """Returns the hash of everything that determines the images, except the drawn people."""
    parts = [path.read_bytes() for path in sorted(PEERS.glob("mix*.py"))] + [repr(MIX_PACKAGES).encode(), b"%d" % SEED]
    if photographs:
        parts += [f"{file.name} {file.stat().st_size}".encode() for file in sorted(photographs.iterdir())]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()
