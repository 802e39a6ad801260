"""Runs commands of the container engine."""
import os
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def say(text):
    print(f"containers: {text}", flush=True)


def skip(reason):
    """Ends the script with status 3: the check cannot run here."""
    print(f"containers: skipped: {reason}", file=sys.stderr)
    sys.exit(3)


def run(*command, **options):
    """Runs a command whose failure ends the script, and returns its standard output."""
    command = [str(part) for part in command]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, **options)
    if done.returncode:
        sys.exit(f"containers: {' '.join(command)} failed with {done.returncode}:\n{done.stdout}")
    return done.stdout.strip()


def docker(*arguments, **options):
    return run("docker", *arguments, **options)


def exists(image):
    return subprocess.run(["docker", "image", "inspect", image], capture_output=True).returncode == 0


def available():
    return subprocess.run(["docker", "info"], capture_output=True).returncode == 0


def start(scratch):
    """Starts an engine if none runs. Returns its process, or `None` if one already runs."""
    if not shutil.which("docker"):
        skip("docker is not installed (Debian: apt-get install docker.io)")
    if available():
        return None
    if os.geteuid() != 0 or not shutil.which("dockerd"):
        skip("no container engine runs, and only root can start dockerd")
    with open(scratch / "dockerd.log", "w", encoding="utf-8") as log:
        engine = subprocess.Popen(["dockerd"], stdout=log, stderr=log, start_new_session=True)
    until = time.monotonic() + 60
    while not available():
        if engine.poll() is not None or time.monotonic() > until:
            engine.terminate()
            engine.wait()
            skip(f"dockerd does not start:\n{(scratch / 'dockerd.log').read_text()[-2000:]}")
        time.sleep(0.5)
    return engine
