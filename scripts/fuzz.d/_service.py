"""The service as it is asked here: on an empty data folder, with nobody's own settings."""
import os

from environments import ROOT
from service import running

# Every port of the world is closed but the discard port: what is asked for by a public address never leaves this machine.
SETTINGS = {"CRAWL_ALLOW_PRIVATE": "127.0.0.0/8", "CRAWL_PORTS": "9", "WORKERS": "2", "LOG_LEVEL": "warn", "PORT": "0", "WEBHOOK_SECRET": "only this run knows it"}
SCOPES = ["read", "analyze", "search", "crawl", "write", "erase", "admin", "system", "keys"]
# What it needs of this process's environment.
INHERITED = ("PATH", "HOME", "LANG", "TMPDIR", "ORT_DYLIB_PATH", "POSTGRES_BIN_DIR", "FACE_MODEL_MIRROR")


def service(binary, folder, auth):
    """A `Service` for a `with` block, with its data and its log in the folder."""
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return running(binary, checkout() | inherited | SETTINGS | {"DATA_DIR": str(folder / "data"), "AUTH": auth}, folder)


def checkout():
    """What the service finds in this checkout. Not by `FACECRAWL_ROOT`: it would read `.env` there, which may name a database that is in use."""
    found = {"FACE_MODEL_MIRROR": "../shared/models", "POSTGRES_BIN_DIR": ".runtime/postgres/bin", "ORT_DYLIB_PATH": ".runtime/onnxruntime/libonnxruntime.*"}
    places = {name: next(ROOT.glob(pattern), None) for name, pattern in found.items()}
    return {"MODELS_DIR": str(ROOT / "models")} | {name: str(place) for name, place in places.items() if place}


def key(running):
    """A key to everything, as the command that makes one shows it."""
    return running.command("keys", "create", "--all", "--name", "fuzz-api", "--scope", ",".join(SCOPES))
