"""Measures the path from bytes to embeddings: `pipeline.py IMAGES PASSES PROCESSES ANALYSER
MODEL...`. With several processes, each processes the whole folder with its share of the cores, and
their rates are added."""
import json
import multiprocessing
import os
import pathlib
import sys
import time

import analysers


def one(images, passes, threads, name, *models):
    """Runs one pass that is not counted, and then `passes` passes that are counted."""
    analyse = getattr(analysers, name)(*models, threads=threads)
    files = [file.read_bytes() for file in sorted(pathlib.Path(images).iterdir())]
    for data in files:
        analyse(analysers.decode(data))
    started = time.perf_counter()
    faces = sum(len(analyse(analysers.decode(data))) for _ in range(passes) for data in files)
    seconds, count = time.perf_counter() - started, passes * len(files)
    return {"images": count, "faces": faces, "images_per_second": count / seconds, "faces_per_second": faces / seconds}


if __name__ == "__main__":
    folder, number, processes, *analyser = sys.argv[1:]
    each = 0 if processes == "1" else max(1, os.cpu_count() // int(processes))
    with multiprocessing.get_context("spawn").Pool(int(processes)) as pool:
        results = pool.starmap(one, [(folder, int(number), each, *analyser)] * int(processes))
    print(json.dumps({key: sum(result[key] for result in results) for key in results[0]}))
