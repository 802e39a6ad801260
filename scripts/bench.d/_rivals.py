"""Throw-away virtual environments with what is measured against, under .runtime/bench."""
import shutil
import subprocess
import sys

from _build import ROOT, say

PEERS = ROOT / "scripts/bench.d/peers"


def python(name, packages):
    """The interpreter of an environment with exactly `packages`, made when it is missing or differs."""
    folder = ROOT / ".runtime/bench" / name
    marker, wanted = folder / ".complete", "\n".join(packages)
    if not marker.exists() or marker.read_text() != wanted:
        say(f"installing {' '.join(packages)} into {folder.relative_to(ROOT)}")
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin/python", "-m", "pip", "install", "--quiet", *packages], check=True)
        marker.write_text(wanted)
    return folder / "bin/python"
