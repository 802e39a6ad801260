"""The service as it is measured, on a data folder of its own."""
from _build import environment
from service import running


def service(release, data, **settings):
    """A `Service` for a `with` block; its log lies beside the data folder."""
    return running(release / "facecrawl", environment(DATA_DIR=str(data), PORT="0", LOG_LEVEL="warn", **settings), data.parent)


def compact(models, scratch):
    """Settings of the compact pack, its files taken from the folder `models` into one of its own."""
    return {"MODELS_DIR": str(scratch / "models"), "FACE_MODEL_MIRROR": str(models.resolve()), "MODEL_PACK": "compact"}


def resident_mb(pid):
    """Resident memory of the process alone, without the private Postgres."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return 0.0
