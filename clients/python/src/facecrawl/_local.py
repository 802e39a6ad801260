"""Runs a private service for a program or a notebook."""
from __future__ import annotations

import atexit
import difflib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from typing import Union

from facecrawl._client import Client
from facecrawl._errors import StartFailed
from facecrawl._program import program as find_program

READY = re.compile(r"facecrawl is ready on (http://\S+)")
LOG_LINES = 20
STOP_SECONDS = 60.0
# The settings with the paths of the parts of the installation. A private service does not inherit
# any other setting, such as the address of a database in use.
INHERITED = {
    "FACE_MODEL_MIRROR",
    "FFMPEG",
    "GPU_PLUGINS_DIR",
    "MODELS_DIR",
    "ORT_DYLIB_PATH",
    "POSTGRES_BIN_DIR",
}
# The variable with the folder of a checkout. It is not inherited, because the folder can contain a
# file with settings.
ROOT_VARIABLE = "FACECRAWL_ROOT"
# A shell script that waits for a line from this program. If this program is killed, the pipe closes
# without a line, and the script ends the service and deletes its folder, if one is given.
GUARD = """
read -r line && exit
kill "$1"
tries=0
while kill -0 "$1" && [ $tries -lt 300 ]; do sleep 0.2; tries=$((tries + 1)); done
kill -0 "$1" || [ -z "$2" ] || rm -rf -- "$2"
"""
# `READY` matches a line of the log in this format.
FIXED = {"LOG_FORMAT": "text"}

Value = Union[str, int, float]


class LocalService:
    """A private service; see `local`.

    Attributes:
        url: The address of the service; empty if it does not run.
        log: The file with the log of the service; None if it does not run.
    """

    def __init__(
        self,
        *,
        data: str | os.PathLike[str] | None = None,
        settings: Mapping[str, Value] | None = None,
        program: str | os.PathLike[str] | None = None,
        start_timeout: float = 300.0,
    ) -> None:
        self.url = ""
        self.log: pathlib.Path | None = None
        self._data, self._settings = data, dict(settings or {})
        self._program, self._start_timeout = program, start_timeout
        self._folder: pathlib.Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._client: Client | None = None
        self._owner = 0

    def start(self) -> Client:
        """Starts the service and returns a client of it. The service stops when Python exits or is
        killed.

        Raises:
            StartFailed: The program is missing, or the service does not become ready.
        """
        if self._client:
            return self._client
        try:
            program = os.path.abspath(self._program or find_program())
            environment = self._environment(program)
            self._folder = self._make_folder()
            self._start(program, environment)
        except OSError as error:
            self.stop()
            raise StartFailed(f"cannot start facecrawl: {error}") from error
        except BaseException:
            self.stop()
            raise
        self._client = Client(self.url, key="")
        return self._client

    def stop(self) -> None:
        """Stops the service, and deletes its data if no folder was given."""
        if self._owner not in (0, os.getpid()):
            return  # This process is a fork of the one that started the service.
        atexit.unregister(self.stop)
        if self._client:
            self._client.close()
        if self._process:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._folder and self._data is None:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._guard:
            self._guard.communicate(b"stopped\n")
        self.url, self.log = "", None
        self._client = self._process = self._guard = self._folder = None
        self._owner = 0

    def __enter__(self) -> Client:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _make_folder(self) -> pathlib.Path:
        is_new = True
        if self._data is None:
            folder = pathlib.Path(tempfile.mkdtemp(prefix="facecrawl-"))
        else:
            folder = pathlib.Path(self._data).absolute()
            is_new = not folder.exists()
            folder.mkdir(parents=True, exist_ok=True)
        if is_new and os.geteuid() == 0:
            # Postgres refuses to run as root. The user that runs it must be able to enter the
            # folder.
            folder.chmod(0o711)
        return folder

    def _environment(self, program: str) -> dict[str, str]:
        """Returns the environment of the service, without the settings of other services."""
        names = setting_names(program)
        for name in self._settings:
            if name not in names:
                near = difflib.get_close_matches(name, names, 1)
                hint = f"; did you mean {near[0]}?" if near else "; .env.example lists the settings"
                raise ValueError(f"{name} is not a setting of facecrawl{hint}")
            if name == "DATA_DIR":
                raise ValueError("DATA_DIR cannot be set here; the argument `data` selects the folder")
            if name in FIXED:
                raise ValueError(f"{name} cannot be set here, because this module reads the log")
        removed = (names - INHERITED) | {ROOT_VARIABLE}
        kept = {name: value for name, value in os.environ.items() if name not in removed}
        given = {name: as_text(value) for name, value in self._settings.items()}
        return kept | {"HOST": "127.0.0.1", "PORT": "0"} | given | FIXED

    def _start(self, program: str, environment: dict[str, str]) -> None:
        assert self._folder
        self.log = self._folder / "facecrawl.log"
        with open(self.log, "wb") as log:
            # An interrupt of this program, for example of a cell of a notebook, must not reach the
            # service, so it has its own session.
            self._process = subprocess.Popen(
                [program, "up"],
                cwd=self._folder,
                env=environment | {"DATA_DIR": str(self._folder / "data")},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        self._owner = os.getpid()
        atexit.register(self.stop)
        temporary = str(self._folder) if self._data is None else ""
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, "sh", str(self._process.pid), temporary],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + self._start_timeout
        while True:
            has_ended = self._process.poll() is not None
            text = self.log.read_text(encoding="utf-8", errors="replace")
            if ready := READY.search(text):
                self.url = ready.group(1)
                return
            if has_ended or time.monotonic() > deadline:
                lines = "\n".join(text.splitlines()[-LOG_LINES:])
                status = self._process.returncode
                what = f"exited with status {status}" if has_ended else "did not become ready"
                raise StartFailed(f"facecrawl {what}; the end of its log:\n{lines}")
            time.sleep(0.05)


def setting_names(program: str) -> set[str]:
    """Returns the names of all settings of the program."""
    command = [program, "config", "example"]
    try:
        done = subprocess.run(command, env={}, cwd="/", capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        raise StartFailed(f"{program} did not print its settings within 60 seconds") from None
    names = set(re.findall(r"^#([A-Z][A-Z0-9_]*)=", done.stdout, re.MULTILINE))
    if done.returncode or "DATA_DIR" not in names:
        reason = done.stderr.strip()[-500:]
        raise StartFailed(f"{program} is not the program of facecrawl: {reason}")
    return names


def as_text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def local(
    *,
    data: str | os.PathLike[str] | None = None,
    settings: Mapping[str, Value] | None = None,
    program: str | os.PathLike[str] | None = None,
    start_timeout: float = 300.0,
) -> LocalService:
    """Runs a private service on a free port of this machine.

        with facecrawl.local() as client:
            print(client.detect_faces("photo.jpg"))

    In a notebook, call `start`, which returns the client, and later `stop`. The service also stops
    when Python exits. Every user of this machine can connect to its port.

    Args:
        data: A folder that keeps the data. By default, a temporary folder is used and deleted.
        settings: Settings of the service by their names in .env.example, such as
            {"CRAWL_ALLOW_PRIVATE": "10.0.0.0/8"}. The service ignores settings in the environment,
            except the paths of the installation, such as `MODELS_DIR`.
        program: The program. By default, `FACECRAWL_PROGRAM`, else the program of this package.
        start_timeout: The maximum number of seconds until the service is ready.
    """
    return LocalService(
        data=data, settings=settings, program=program, start_timeout=start_timeout
    )
