"""Starts the service with `./scripts/run`, as the README describes it, detects the people in a
screenshot of this repository over HTTP, and stops the service. Prints the wall and CPU seconds,
which include the set-up and the build if they are still needed.
"""
import json
import os
import pathlib
import resource
import sys
import urllib.request

from service import running

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The screenshot of the web page shows ten people, whom the tests draw.
IMAGE = ROOT / "docs/screenshots/detect.png"
LEAST_FACES = 10


def main():
    # The system chooses a free port.
    with running(ROOT / "scripts/run", {**os.environ, "PORT": "0"}, ROOT) as service:
        print(f"ready after {service.seconds:.0f} s", flush=True)
        faces = len(answer(service.base + "/faces/detect?embeddings=false", IMAGE.read_bytes())["faces"])
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{faces} faces in {IMAGE.name}; {used.ru_utime + used.ru_stime:.0f} CPU s in all")
    if faces < LEAST_FACES:
        sys.exit(f"expected at least {LEAST_FACES} faces")


def answer(url, image):
    """Sends an image and returns the JSON of the response."""
    request = urllib.request.Request(url, data=image, headers={"content-type": "image/png"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


main()
