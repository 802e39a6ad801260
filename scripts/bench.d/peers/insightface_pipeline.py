"""Measures InsightFace's own path from bytes to embeddings: `insightface_pipeline.py MODELS_FOLDER
IMAGES PASSES PROCESSES`.

`FaceAnalysis` runs with SCRFD and the embedder of the folder, at 640x640 and with its default
threshold. With several processes, each processes the whole folder with its share of the cores, and
their rates are added.
"""
import multiprocessing
import os
import sys

import cv2
import numpy
import onnxruntime
from insightface.app import FaceAnalysis

from pictures import measure, tell


def analysis(models, threads=0):
    """Returns FaceAnalysis with the detector and the embedder of the folder. `threads` is 0 for all
    cores."""
    options = onnxruntime.SessionOptions()
    if threads:
        options.intra_op_num_threads = threads
        cv2.setNumThreads(threads)
    app = FaceAnalysis(name=models, allowed_modules=["detection", "recognition"], providers=["CPUExecutionProvider"], sess_options=options)
    app.prepare(ctx_id=-1, det_size=(640, 640))
    if set(app.models) != {"detection", "recognition"}:
        sys.exit(f"the folder must contain a detector and an embedder, but contains {sorted(app.models)}")
    return app


def analyser(models, threads=1):
    """Returns a function from pixels to faces: pairs of a box and an embedding."""
    app = analysis(models, threads)
    return lambda image: [(face.bbox, face.normed_embedding) for face in app.get(image)]


def one(arguments):
    models, images, passes, threads = arguments
    app = analysis(models, threads)

    def work(data):
        image = cv2.imdecode(numpy.frombuffer(data, numpy.uint8), cv2.IMREAD_COLOR)
        return 0 if image is None else len(app.get(image))

    return measure(images, passes, work)


def main():
    models, images, passes, processes = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    if processes == 1:
        tell(one((models, images, passes, 0)))
        return
    threads = max(1, os.cpu_count() // processes)
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        results = pool.map(one, [(models, images, passes, threads)] * processes)
    total = {key: sum(result[key] for result in results) for key in ("images", "faces", "images_per_second", "faces_per_second")}
    tell({**total, "seconds": max(result["seconds"] for result in results)})


if __name__ == "__main__":
    main()
