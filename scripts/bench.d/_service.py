"""Starts the service that is measured, with a separate data folder."""
from _build import environment
from service import running


def service(release, data, **settings):
    """Returns a `Service` for a `with` block. Its log is next to the data folder."""
    return running(release / "facecrawl", environment(DATA_DIR=str(data), PORT="0", LOG_LEVEL="warn", **settings), data.parent)


def compact(models, scratch):
    """Returns settings for the compact pack, with files copied from the folder `models` to a
    separate one."""
    return {"MODELS_DIR": str(scratch / "models"), "FACE_MODEL_MIRROR": str(models.resolve()), "MODEL_PACK": "compact"}


def resident_mb(pid):
    """Returns the resident memory of the process alone, without the private Postgres."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return 0.0
