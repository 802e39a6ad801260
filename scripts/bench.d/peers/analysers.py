"""What the programs for comparison share: decoding, and a function for each library that returns an
analyser of pixels. An analyser returns the faces: pairs of a box and an embedding.

The arguments of such a function are paths of models, `most_scale` for the programs with OpenCV (by
how much an image is enlarged at most for the detector), and `threads` (0: all cores). Not every
environment has every library, so each function imports its own.
"""
import contextlib
import io
import sys
import threading

import cv2
import numpy

LOADING = threading.Lock()
SIDE = 640
TEMPLATE = numpy.array(
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]], numpy.float32
)
MEAN = numpy.array([0.485, 0.456, 0.406], numpy.float32) * 255
STD = numpy.array([0.229, 0.224, 0.225], numpy.float32) * 255


def decode(data):
    """Returns the pixels in OpenCV's order. Pillow decodes what OpenCV cannot."""
    image = cv2.imdecode(numpy.frombuffer(data, numpy.uint8), cv2.IMREAD_COLOR)
    if image is None:
        from PIL import Image

        image = numpy.asarray(Image.open(io.BytesIO(data)).convert("RGB"))[:, :, ::-1].copy()
    return image


def face_analysis(models, threads=0):
    """Returns InsightFace's FaceAnalysis with the detector and the embedder of a folder, at 640x640 and
    with its default threshold."""
    import onnxruntime
    from insightface.app import FaceAnalysis

    options = onnxruntime.SessionOptions()
    if threads:
        options.intra_op_num_threads = threads
        cv2.setNumThreads(threads)
    # The library prints to stdout, where the result belongs. Other threads may load models too.
    with LOADING, contextlib.redirect_stdout(sys.stderr):
        app = FaceAnalysis(name=models, allowed_modules=["detection", "recognition"], providers=["CPUExecutionProvider"], sess_options=options)
        app.prepare(ctx_id=-1, det_size=(SIDE, SIDE))
    if set(app.models) != {"detection", "recognition"}:
        sys.exit(f"the folder must contain a detector and an embedder, but contains {sorted(app.models)}")
    return app


def insightface(models, threads=1):
    app = face_analysis(models, threads)
    return lambda image: [(face.bbox, face.normed_embedding) for face in app.get(image)]


def yunet(path, most_scale):
    """Returns a function from pixels to the rows of FaceDetectorYN. Images are first scaled to fit
    640x640, as the detector's own example does with camera frames."""
    detector = cv2.FaceDetectorYN.create(path, "", (SIDE, SIDE), 0.6, 0.3, 5000)

    def detect(image):
        scale = min(SIDE / image.shape[0], SIDE / image.shape[1], float(most_scale))
        small = cv2.resize(image, None, fx=scale, fy=scale)
        detector.setInputSize((small.shape[1], small.shape[0]))
        _, faces = detector.detect(small)
        for face in [] if faces is None else faces:
            face[:14] /= scale
            yield face

    return detect


def opencv(detector, embedder, most_scale="inf", threads=1):
    """FaceDetectorYN, chips that warpAffine cuts out with the least-squares similarity transform from
    the five landmarks to the template of ArcFace, and the embedder in ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    detect = yunet(detector, most_scale)
    session = onnxruntime.InferenceSession(embedder, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def analyse(image):
        found = []
        for face in detect(image):
            # The first landmark of FaceDetectorYN is the person's right eye, which is the left one
            # in the image, as in the template.
            matrix, _ = cv2.estimateAffinePartial2D(face[4:14].reshape(5, 2), TEMPLATE, method=cv2.LMEDS)
            if matrix is None:
                continue
            chip = cv2.warpAffine(image, matrix, (112, 112))[:, :, ::-1].astype(numpy.float32)
            tensor = ((chip - MEAN) / STD).transpose(2, 0, 1)[None]
            embedding = session.run(None, {name: tensor})[0][0]
            found.append((face[:4], embedding / numpy.linalg.norm(embedding)))
        return found

    return analyse


def opencv_sface(detector, sface, most_scale="inf", threads=0):
    """FaceDetectorYN, alignCrop and FaceRecognizerSF. Both files may be the `int8bq` ones of OpenCV Zoo,
    which OpenCV 4.12 runs and 5.0 does not."""
    if threads:
        cv2.setNumThreads(threads)
    detect, recogniser = yunet(detector, most_scale), cv2.FaceRecognizerSF.create(sface, "")

    def analyse(image):
        features = ((face[:4], recogniser.feature(recogniser.alignCrop(image, face))[0]) for face in detect(image))
        return [(box, feature / numpy.linalg.norm(feature)) for box, feature in features]

    return analyse
