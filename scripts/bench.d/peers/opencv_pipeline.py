"""Measures OpenCV's FaceDetectorYN with chips that warpAffine aligns, and the embedder in ONNX
Runtime. Usage: `opencv_pipeline.py YUNET EMBEDDER IMAGES PASSES`.

Images are first scaled to fit 640x640, as the detector's own example does with camera frames. The
chip is cut out with the least-squares similarity transform that maps the five landmarks to the
112x112 template of ArcFace.
"""
import sys

import cv2
import numpy
import onnxruntime

from pictures import measure, tell

SIDE = 640
TEMPLATE = numpy.array(
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]], numpy.float32
)
MEAN = numpy.array([0.485, 0.456, 0.406], numpy.float32) * 255
STD = numpy.array([0.229, 0.224, 0.225], numpy.float32) * 255


def analyser(yunet, embedder, most_scale="inf", threads=1):
    """Returns a function from pixels to faces: pairs of a box and an embedding. Images are enlarged
    at most by `most_scale` for the detector. `threads` is 0 for all cores."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    detector = cv2.FaceDetectorYN.create(yunet, "", (SIDE, SIDE), 0.6, 0.3, 5000)
    session = onnxruntime.InferenceSession(embedder, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def analyse(image):
        scale = min(SIDE / image.shape[0], SIDE / image.shape[1], float(most_scale))
        small = cv2.resize(image, None, fx=scale, fy=scale)
        detector.setInputSize((small.shape[1], small.shape[0]))
        _, faces = detector.detect(small)
        found = []
        for face in [] if faces is None else faces:
            # The first landmark of FaceDetectorYN is the person's right eye, which is the left one
            # in the image, as in the template.
            points = face[4:14].reshape(5, 2) / scale
            matrix, _ = cv2.estimateAffinePartial2D(points, TEMPLATE, method=cv2.LMEDS)
            if matrix is None:
                continue
            chip = cv2.warpAffine(image, matrix, (112, 112))[:, :, ::-1].astype(numpy.float32)
            tensor = ((chip - MEAN) / STD).transpose(2, 0, 1)[None]
            embedding = session.run(None, {name: tensor})[0][0]
            found.append((face[:4] / scale, embedding / numpy.linalg.norm(embedding)))
        return found

    return analyse


def main():
    yunet, embedder, images, passes = sys.argv[1:4] + [int(sys.argv[4])]
    analyse = analyser(yunet, embedder, threads=0)

    def work(data):
        image = cv2.imdecode(numpy.frombuffer(data, numpy.uint8), cv2.IMREAD_COLOR)
        return 0 if image is None else len(analyse(image))

    tell(measure(images, passes, work))


if __name__ == "__main__":
    main()
