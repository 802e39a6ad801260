"""Creates virtual environments under .runtime/python with exactly the packages that a tool of this
project needs. An environment is created again if the required packages have changed.

Prints the path of the interpreter. Usage: `$(python3 scripts/lib/environments.py NAME
PACKAGE==VERSION...)`.
"""
import importlib.util
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def python(name, packages):
    """Returns the interpreter of the environment `name` with exactly `packages`.

    Ends the process with one sentence if this Python cannot create environments.
    """
    folder = ROOT / ".runtime/python" / name
    marker, wanted = folder / ".complete", "\n".join(packages)
    if not marker.exists() or marker.read_text() != wanted:
        # Debian has this module of Python in a package of its own.
        if importlib.util.find_spec("ensurepip") is None:
            sys.exit("python3 has no ensurepip, which virtual environments need; install it (for example: apt-get install python3-venv)")
        print(f"installing {' '.join(packages)} into {folder.relative_to(ROOT)}", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        install = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
        subprocess.run(install, check=True, stdout=sys.stderr)
        marker.write_text(wanted)
    return folder / "bin/python"


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: environments.py NAME PACKAGE==VERSION...")
    print(python(sys.argv[1], sys.argv[2:]))
