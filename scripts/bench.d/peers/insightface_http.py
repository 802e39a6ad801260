"""Runs a typical service with FastAPI and uvicorn around InsightFace's FaceAnalysis.
`insightface_http.py MODELS_FOLDER` prints the URL when the service is ready.

The endpoint takes the image as the raw body and runs the analysis on the thread pool of the server,
so that the server accepts other requests in the meantime.
"""
import socket
import sys

import cv2
import numpy
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from insightface.app import FaceAnalysis


def main():
    analysis = FaceAnalysis(name=sys.argv[1], allowed_modules=["detection", "recognition"], providers=["CPUExecutionProvider"])
    analysis.prepare(ctx_id=-1, det_size=(640, 640))
    app = FastAPI()

    def analyse(data):
        image = cv2.imdecode(numpy.frombuffer(data, numpy.uint8), cv2.IMREAD_COLOR)
        if image is None:
            raise HTTPException(415, "not an image")
        return [
            {
                "bbox": [float(v) for v in face.bbox],
                "det_score": float(face.det_score),
                "landmarks": face.kps.tolist(),
                "embedding": face.normed_embedding.tolist(),
            }
            for face in analysis.get(image)
        ]

    @app.post("/faces/detect")
    async def detect(request: Request):
        return {"faces": await run_in_threadpool(analyse, await request.body())}

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


if __name__ == "__main__":
    main()
