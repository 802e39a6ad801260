"""Runs a typical service with FastAPI and uvicorn around InsightFace's FaceAnalysis.
`serve_insightface.py MODELS_FOLDER` prints the URL when the service is ready.

The endpoint takes the image as the raw body and runs the analysis on the thread pool of the server,
so that the server accepts other requests in the meantime.
"""
import socket
import sys

import uvicorn
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool

from analysers import decode, face_analysis


def main():
    analysis = face_analysis(sys.argv[1])
    app = FastAPI()

    def analyse(data):
        return [
            {
                "bbox": [float(v) for v in face.bbox],
                "det_score": float(face.det_score),
                "landmarks": face.kps.tolist(),
                "embedding": face.normed_embedding.tolist(),
            }
            for face in analysis.get(decode(data))
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
