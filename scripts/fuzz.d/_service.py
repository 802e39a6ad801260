"""The service under test: on an empty data folder, without the settings of the user."""
import os

from environments import ROOT
from service import running

# Only the discard port is allowed for public addresses, so that no request to a public address
# leaves this machine.
SETTINGS = {"CRAWL_ALLOW_PRIVATE": "127.0.0.0/8", "CRAWL_PORTS": "9", "WORKERS": "2", "LOG_LEVEL": "warn", "PORT": "0", "WEBHOOK_SECRET": "only this run knows it"}
CAMERAS = ["front-door", "yard"]
SCOPES = ["read", "analyze", "search", "crawl", "write", "watch", "erase", "admin", "system", "keys"]
# Variables that the service inherits from this process.
INHERITED = ("PATH", "HOME", "LANG", "TMPDIR", "ORT_DYLIB_PATH", "POSTGRES_BIN_DIR", "FACE_MODEL_MIRROR", "FFMPEG")


def service(binary, folder, auth, site):
    """Returns a `Service` for a `with` block, with its data and its log in the folder. It watches two
    cameras of the site."""
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    cameras = folder / "streams.toml"
    cameras.write_text("".join(f'[streams.{name}]\nurl = "{site}/camera"\nkind = "mjpeg"\npurpose = "a test"\nretention_hours = 1\n' for name in CAMERAS))
    own = {"DATA_DIR": str(folder / "data"), "AUTH": auth, "STREAMS_FILE": str(cameras), "STREAM_ALLOW_PRIVATE": "127.0.0.0/8"}
    return running(binary, checkout() | inherited | SETTINGS | own, folder)


def checkout():
    """Returns the paths in this checkout that the service needs. `FACECRAWL_ROOT` is not set,
    because the service would then read `.env` in this checkout, which may contain the address of a
    database in use."""
    found = {"FACE_MODEL_MIRROR": "../shared/models", "POSTGRES_BIN_DIR": ".runtime/postgres/bin", "ORT_DYLIB_PATH": ".runtime/onnxruntime/libonnxruntime.*", "FFMPEG": ".runtime/ffmpeg/ffmpeg"}
    places = {name: next(ROOT.glob(pattern), None) for name, pattern in found.items()}
    return {"MODELS_DIR": str(ROOT / "models")} | {name: str(place) for name, place in places.items() if place}


def key(running):
    """Creates a key with all scopes for all collections and returns the key as the command prints
    it."""
    return running.command("keys", "create", "--all", "--name", "fuzz-api", "--scope", ",".join(SCOPES))
