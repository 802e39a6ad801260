"""Checks that the Python package requires the versions of the lists in scripts/ and of models.toml."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYPROJECT = ROOT / "clients/python/pyproject.toml"
LISTS = ("runtime-wheels.txt", "video-wheels.txt", "gpu-wheels.txt")


def main():
    known = set(re.findall(r'requirement = "([^"]+)"', (ROOT / "models.toml").read_text()))
    for name in LISTS:
        known.update(re.findall(r"^([\w-]+==[\w.]+)", (ROOT / "scripts" / name).read_text(), re.M))
    text = PYPROJECT.read_text().partition("[project]")[2]
    wanted = re.findall(r'"([\w-]+==[\w.]+)', text)
    unknown = sorted(set(wanted) - known)
    if unknown or not wanted:
        sys.exit(f"wheel: {PYPROJECT.relative_to(ROOT)} requires {', '.join(unknown)}, which is in none of {', '.join(LISTS)} and models.toml")


main()
