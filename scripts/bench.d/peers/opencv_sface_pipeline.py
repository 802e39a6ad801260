"""Measures OpenCV alone, with FaceDetectorYN, alignCrop and FaceRecognizerSF. Usage:
`opencv_sface_pipeline.py YUNET SFACE IMAGES PASSES`.

Images are first scaled to fit 640x640, as the detector's own example does with camera frames. Faces
are cut out of the original pixels. Both files may be the `int8bq` ones of OpenCV Zoo, which OpenCV
4.12 runs and 5.0 does not.
"""
import sys

import cv2
import numpy

from pictures import measure, tell

SIDE = 640


def analyser(yunet, sface, most_scale="inf", threads=0):
    """Returns a function from pixels to faces: pairs of a box and an embedding. Images are enlarged
    at most by `most_scale` for the detector. `threads` is 0 for all cores."""
    if threads:
        cv2.setNumThreads(threads)
    detector = cv2.FaceDetectorYN.create(yunet, "", (SIDE, SIDE), 0.6, 0.3, 5000)
    recogniser = cv2.FaceRecognizerSF.create(sface, "")

    def analyse(image):
        scale = min(SIDE / image.shape[0], SIDE / image.shape[1], float(most_scale))
        small = cv2.resize(image, None, fx=scale, fy=scale)
        detector.setInputSize((small.shape[1], small.shape[0]))
        _, faces = detector.detect(small)
        found = []
        for face in [] if faces is None else faces:
            face[:14] /= scale
            feature = recogniser.feature(recogniser.alignCrop(image, face))[0]
            found.append((face[:4], feature / numpy.linalg.norm(feature)))
        return found

    return analyse


def main():
    yunet, sface, images, passes = sys.argv[1:4] + [int(sys.argv[4])]
    analyse = analyser(yunet, sface)

    def work(data):
        image = cv2.imdecode(numpy.frombuffer(data, numpy.uint8), cv2.IMREAD_COLOR)
        return 0 if image is None else len(analyse(image))

    tell(measure(images, passes, work))


if __name__ == "__main__":
    main()
