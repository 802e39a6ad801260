"""Runs clients of CompreFace and DeepStack against a service with COMPAT=compreface,deepstack; see
`scripts/test-compat`.

The examples are those of the README of compreface-sdk, with portraits of people who do not exist. The requests of Double Take and Viseron are those of their public source code.
"""
import io
import os
import pathlib
import subprocess
import sys
import tempfile

import requests
from compreface import CompreFace
from compreface.collections import FaceCollection
from compreface.collections.face_collections import Subjects
from compreface.service import DetectionService, RecognitionService, VerificationService
from deepstack_sdk import Face, ServerConfig
from PIL import Image
from service import running

ROOT = pathlib.Path(__file__).resolve().parents[2]
# CompreFace's own default, and what its clients use unless they are told otherwise.
THRESHOLD = 0.5
DET_PROB_THRESHOLD = 0.6


def main():
    with tempfile.TemporaryDirectory(prefix="fc-") as name:
        folder = pathlib.Path(name)
        # The private Postgres of root runs as another user.
        folder.chmod(0o755)
        target = pathlib.Path(sys.argv[1])
        people = portraits(target / "examples/draw", folder / "portraits")
        environment = {
            **os.environ,
            "FACECRAWL_ROOT": str(ROOT),
            "COMPAT": "compreface,deepstack",
            "DATA_DIR": str(folder / "data"),
            "MODELS_DIR": os.environ.get("MODELS_DIR", str(folder / "models")),
            "PORT": "0",
        }
        with running(target / "facecrawl", environment, folder) as service:
            checks = (compreface_readme, double_take, viseron, deepstack_sdk, codeproject_ai)
            for check in checks:
                check(service.base, people)
                print(f"passed {check.__name__}", flush=True)


def portraits(draw, folder):
    """Returns two portraits of each of three people."""
    subprocess.run([draw, "portraits", folder, "3", "2"], check=True, stdout=subprocess.DEVNULL)
    people = {}
    for path in sorted(folder.glob("*.jpg")):
        people.setdefault(path.name.split("-")[0], []).append(str(path))
    return list(people.values())


def empty_image():
    """Returns the file of an image without a face."""
    data = io.BytesIO()
    Image.new("RGB", (320, 240), (90, 120, 90)).save(data, "JPEG")
    return data.getvalue()


def compreface_readme(base, people):
    """The examples of compreface-sdk's README, in their order."""
    domain, _, port = base.rpartition(":")
    compre_face = CompreFace(domain, port, {
        "limit": 0, "det_prob_threshold": DET_PROB_THRESHOLD, "prediction_count": 1,
        "face_plugins": "calculator,age,gender,landmarks", "status": "true",
    })
    recognition: RecognitionService = compre_face.init_face_recognition("your_face_recognition_key")
    collection: FaceCollection = recognition.get_face_collection()
    subjects: Subjects = recognition.get_subjects()
    detection: DetectionService = compre_face.init_face_detection("your_face_detection_key")
    verification: VerificationService = compre_face.init_face_verification("your_face_verification_key")
    (first, first_again), (second, _) = people[0], people[1]

    added = collection.add(image_path=first, subject="Jonathan Petit")
    assert added["subject"] == "Jonathan Petit", added
    collection.add(image_path=second, subject="Someone Else", options={"det_prob_threshold": DET_PROB_THRESHOLD})
    found = recognition.recognize(image_path=first_again)
    face = found["result"][0]
    best = face["subjects"][0]
    assert best["subject"] == "Jonathan Petit" and best["similarity"] >= THRESHOLD, found
    assert len(face["embedding"]) > 100 and len(face["landmarks"]) == 5, found
    assert set(found["plugins_versions"]) == {"detector", "calculator"}, found
    options = {"limit": 1, "det_prob_threshold": DET_PROB_THRESHOLD, "prediction_count": 2, "face_plugins": "landmarks", "status": "false"}
    several = recognition.recognize(first_again, options)["result"][0]["subjects"]
    assert [person["subject"] for person in several] == ["Jonathan Petit", "Someone Else"], several
    assert several[1]["similarity"] < THRESHOLD, several
    with open(first, "rb") as file:
        assert recognition.recognize(file.read())["result"][0]["subjects"][0]["similarity"] > 0.99

    listed = collection.list()
    assert {face["subject"] for face in listed["faces"]} == {"Jonathan Petit", "Someone Else"}, listed
    verified = collection.verify(first_again, added["image_id"])
    assert verified["result"][0]["similarity"] >= THRESHOLD, verified
    detected = detection.detect(first, {"face_plugins": "landmarks", "det_prob_threshold": DET_PROB_THRESHOLD, "limit": 0, "status": "true"})
    assert set(detected["result"][0]["box"]) == {"probability", "x_min", "x_max", "y_min", "y_max"}, detected
    pair = verification.verify(first, first_again)["result"][0]
    assert pair["face_matches"][0]["similarity"] >= THRESHOLD, pair
    other = verification.verify(first, second)["result"][0]
    assert other["face_matches"][0]["similarity"] < THRESHOLD, other
    assert recognition.recognize(empty_image()) == {"message": "No face is found in the given image", "code": 28}

    assert subjects.add("New Person") == {"subject": "New Person"}
    assert subjects.update("New Person", "Jonathan Petit") == {"updated": True}
    assert subjects.list() == {"subjects": ["Jonathan Petit", "Someone Else"]}
    assert subjects.delete("Someone Else") == {"subject": "Someone Else"}
    assert collection.delete(added["image_id"]) == {"image_id": added["image_id"], "subject": "Jonathan Petit"}
    assert collection.delete_all("Jonathan Petit") == {"deleted": 0}
    assert subjects.delete_all()["code"] == 33, "all people are deleted only one by one"
    assert subjects.list() == {"subjects": []}


def double_take(base, people):
    """The requests of Double Take for CompreFace: train, recognise, remove, and no face."""
    headers = {"x-api-key": "key"}
    (portrait, again), _ = people[0], people[1]

    def recognize(image):
        return requests.post(
            base + "/api/v1/recognition/recognize?face_plugins=mask,gender,age",
            params={"det_prob_threshold": DET_PROB_THRESHOLD}, files={"file": image}, headers=headers, timeout=60).json()

    # Before the first training, nobody is known.
    assert recognize(pathlib.Path(again).read_bytes())["result"][0]["subjects"] == []
    trained = requests.post(base + "/api/v1/recognition/faces", params={"subject": "ada"}, files={"file": open(portrait, "rb")}, headers=headers, timeout=60)
    assert trained.status_code == 201, trained.text
    found = recognize(open(again, "rb"))["result"][0]
    box = found["box"]
    assert found["subjects"][0]["subject"] == "ada" and found["subjects"][0]["similarity"] >= 0.6, found
    assert (box["x_max"] - box["x_min"]) * (box["y_max"] - box["y_min"]) > 0, found
    assert recognize(empty_image())["code"] == 28, "Double Take takes this for an image without faces"
    removed = requests.delete(base + "/api/v1/recognition/faces", params={"subject": "ada"}, headers=headers, timeout=60)
    assert removed.json() == {"deleted": 1}, removed.text


def viseron(base, people):
    """Viseron uses compreface-sdk: it trains again at each start, and needs a subject per face."""
    domain, _, port = base.rpartition(":")
    options = {"limit": 0, "det_prob_threshold": DET_PROB_THRESHOLD, "prediction_count": 1, "status": False}
    recognition = CompreFace(domain=domain, port=port, options=options).init_face_recognition("key")
    collection = recognition.get_face_collection()
    for _start in range(2):
        for number, (portrait, _) in enumerate(people[:2]):
            collection.delete_all(f"person {number}")
            with open(portrait, "rb") as file:
                result = collection.add(image_path=file.read(), subject=f"person {number}")
            assert "message" not in result, result
    assert recognition.get_subjects().list() == {"subjects": ["person 0", "person 1"]}
    for number, (_, again) in enumerate(people[:2]):
        with open(again, "rb") as file:
            result = recognition.recognize(file.read())["result"][0]
        subject = result["subjects"][0]
        assert subject["subject"] == f"person {number}" and subject["similarity"] >= THRESHOLD, result
    for number in range(2):
        assert collection.delete_all(f"person {number}") == {"deleted": 1}


def deepstack_sdk(base, people):
    client = Face(ServerConfig(base))
    (portrait, again), (other, _) = people[0], people[1]
    assert client.registerFace(images=[portrait, again], userid="Ada") is True
    recognized = client.recognizeFace(again, min_confidence=0.67)
    assert [face.userid for face in recognized.detections] == ["Ada"], recognized.detections
    assert [face.userid for face in client.recognizeFace(other).detections] == ["unknown"]
    detected = client.detectFace(portrait, min_confidence=0.4)
    assert len(detected) == 1 and detected[0].x_max > detected[0].x_min
    assert list(client.listFaces()) == ["Ada"]
    try:
        client.registerFace(images=[empty_image()], userid="Nobody")
    except Exception as error:  # The client raises this class.
        assert "Invalid image" in str(error), error
    else:
        raise AssertionError("an image without a face was registered")
    assert client.deleteFace("Ada") is True
    assert list(client.listFaces()) == []


def codeproject_ai(base, people):
    """The requests of Viseron for CodeProject.AI, which sends no key and no empty form."""
    url = base + "/v1/vision/face"
    portrait, again = people[0]
    assert requests.post(url + "/list", data={}, timeout=60).json()["faces"] == []
    assert requests.post(url + "/delete", data={"userid": "Ada"}, timeout=60).status_code == 200
    with open(portrait, "rb") as file:
        assert requests.post(url + "/register", files={"image": file}, data={"userid": "Ada"}, timeout=60).json()["success"]
    with open(again, "rb") as file:
        found = requests.post(url + "/recognize", files={"image": file}, data={"min_confidence": 0.5}, timeout=60).json()
    assert found["success"] and found["predictions"][0]["userid"] == "Ada", found
    with open(portrait, "rb") as one, open(again, "rb") as two:
        assert requests.post(url + "/match", files={"image1": one, "image2": two}, timeout=60).json()["similarity"] > 0.5
    assert requests.post(url + "/delete", data={"userid": "Ada"}, timeout=60).json()["success"]


main()
