"""Shared code of the Python programs of `bench pipeline`: reading the images of the folder, the
passes over these images, and the report."""
import json
import pathlib
import time

KINDS = {".jpg", ".jpeg", ".png", ".webp"}


def measure(folder, passes, work):
    """Runs one pass that is not counted, and then `passes` passes that are counted. `work(bytes)`
    returns the number of faces that it embedded."""
    files = [file.read_bytes() for file in sorted(pathlib.Path(folder).iterdir()) if file.suffix.lower() in KINDS]
    for data in files:
        work(data)
    started = time.perf_counter()
    faces = sum(work(data) for _ in range(passes) for data in files)
    seconds = time.perf_counter() - started
    images = passes * len(files)
    return {"images": images, "faces": faces, "seconds": seconds, "images_per_second": images / seconds, "faces_per_second": faces / seconds}


def tell(result):
    print(json.dumps(result))
