"""Installs dist/facecrawl-*.whl into an empty virtual environment, starts the service, and detects
faces over HTTP and with the client. While the service runs, it cannot reach any other machine
through a proxy, so it must find everything in the environment.

    test_wheel.py [--upgrade OLDER_WHEEL]

With --upgrade, stores a person with the older wheel first, installs the new one over it, and goes
back. Prints the seconds and the size on disk. Uses a package index only to install.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

from service import running

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The screenshot of the web page shows ten people, whom the tests draw.
IMAGE = ROOT / "docs/screenshots/detect.png"
LEAST_FACES = 10
# Runs in the new environment, which has no other package than those that the wheel requires.
CLIENT = """
import sys, facecrawl
with facecrawl.Client(sys.argv[1]) as client:
    print(len(client.detect_faces(sys.argv[2], embeddings=False)["faces"]))
"""
# What pip needs to reach its index.
PASSED_ON = ("PIP_", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "no_proxy", "NO_PROXY", "SSL_CERT_", "REQUESTS_CA_BUNDLE")


def main():
    parser = argparse.ArgumentParser(prog="test_wheel.py")
    parser.add_argument("--upgrade", type=pathlib.Path, metavar="OLDER_WHEEL")
    arguments = parser.parse_args()
    [wheel] = (ROOT / "dist").glob("facecrawl-*.whl")
    with tempfile.TemporaryDirectory(prefix="fc-") as name:
        folder = pathlib.Path(name)
        # The private Postgres of root runs as another user.
        folder.chmod(0o755)
        installation = Installation(folder)
        if arguments.upgrade:
            installation.upgrade_and_go_back(arguments.upgrade, wheel)
        else:
            installation.smoke_test(wheel)


class Installation:
    def __init__(self, folder):
        self.folder = folder
        self.python = folder / "environment/bin/python"
        self.program = folder / "environment/bin/facecrawl"
        subprocess.run([sys.executable, "-m", "venv", folder / "environment"], check=True)
        # The proxy does not exist. Postgres and the client use loopback only.
        self.environment = {
            "HOME": str(folder), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PORT": "0", "AUTH": "none",
            "DATA_DIR": str(folder / "data"), "MODELS_DIR": str(folder / "models"),
            "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "no_proxy": "127.0.0.1",
        }

    def install(self, wheel, *options):
        passed_on = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
        command = [self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *options, wheel]
        subprocess.run(command, check=True, env={"HOME": str(self.folder), "PATH": "/usr/bin:/bin", **passed_on})

    def run(self, *command):
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=self.environment, cwd=self.folder)
        return done.stdout.strip()

    def smoke_test(self, wheel):
        started = time.monotonic()
        self.install(wheel, "--no-cache-dir")
        installed = time.monotonic()
        self.run(self.python, "-m", "pip", "check")
        version = self.run(self.program, "--version")
        assert self.run(self.python, "-m", "facecrawl", "--version") == version
        begun = time.monotonic()
        with running(self.program, self.environment, self.folder) as service:
            faces = int(self.run(self.python, "-c", CLIENT, service.base, IMAGE))
            finished = time.monotonic()
        assert faces >= LEAST_FACES, f"expected at least {LEAST_FACES} faces, found {faces}"
        self.run(self.program, "doctor")
        disk = subprocess.run(["du", "-sm", self.folder / "environment"], check=True, capture_output=True, text=True)
        print(f"{version}: pip {installed - started:.1f} s, start to first face {finished - begun:.1f} s, "
              f"{faces} faces, {disk.stdout.split()[0]} MB on disk")

    def upgrade_and_go_back(self, older, newer):
        names = []
        for number, wheel in enumerate((older, newer, older)):
            # Wheels of one version replace each other only by force.
            self.install(wheel, *(["--force-reinstall", "--no-deps"] if number else []))
            with running(self.program, self.environment, self.folder) as service:
                found = self.request(service.base, "/subjects")
                assert sorted(subject["name"] for subject in found["subjects"]) == names, found
                names.append(f"person {number}")
                self.request(service.base, "/subjects", {"name": names[-1]})
            print(f"passed {wheel}: {len(names)} people", flush=True)

    @staticmethod
    def request(base, path, body=None):
        request = urllib.request.Request(base + path, headers={"content-type": "application/json"},
                                         data=json.dumps(body).encode() if body else None)
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)


main()
