"""Measures images and faces per second from bytes to embeddings, compared with InsightFace's Python
package and OpenCV's FaceDetectorYN.

Every round runs each of these over the same images. Models are loaded and warmed up before the
clock starts:
  insightface      FaceAnalysis (SCRFD 2.5G, MobileFaceNet) in one process with all cores
  insightface x2   the same in two processes that share the cores
  opencv           FaceDetectorYN (YuNet), warpAffine, MobileFaceNet in ONNX Runtime
  opencv sface     FaceDetectorYN (YuNet) and FaceRecognizerSF (SFace) of OpenCV 4.12, from the
                   two int8bq files
  opencv pack      `facecrawl bench` with the same two files (the default pack),
                   DETECTION_PASSES=single, in FP32
  opencv pack-auto the same with CPU_BACKEND=auto, the default: SFace in INT8 if the processor has
                   the instructions
  research         `facecrawl bench` with the models of insightface, DETECTION_PASSES=single
  compact          `facecrawl bench` with the models of opencv, DETECTION_PASSES=single
  research-int8, compact-int8
                   the same with the packs of scripts/quantize, if MODELS contains them
  research-bf16, compact-bf16, opencv pack-bf16
                   the FP32 packs with CPU_BACKEND=openvino-bf16, if ./scripts/openvino installed
                   the library
  research, compact, opencv by model
                   `facecrawl bench` of detection and embedding separately, from decoded pixels:
                   the limit of the models alone
`facecrawl bench` adds --passes if every image would not count equally otherwise. Ratios, and shares
of the limit, are medians of those within each round. The models are those in MODELS. Their licences
apply: the `research` pack is for non-commercial research only.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import tomllib

from _build import ROOT, release as build_release, say
from _packs import OPENCV_PACKAGES, PIPELINE_PACKAGES, bench, link_models, link_pictures
from _rivals import PEERS, python
from _run import last_json, medians, ratios, rounds

FIGURES = ["images_per_second", "faces_per_second"]
OURS = ["research", "compact", "opencv pack"]
MODELS = ["face_detection", "face_embedding"]
OPENVINO = ROOT / ".runtime/openvino/libonnxruntime.so"
FP32 = {"CPU_BACKEND": "onnxruntime"}


def limit(pipeline, detection, embedding):
    """Returns the rate of a pipeline that spends time in its models only: one detection per image
    and an embedding for each face."""
    faces = pipeline["faces_per_second"] / pipeline["images_per_second"]
    rate = 1 / (1 / detection["images_per_second"] + faces / embedding["images_per_second"])
    return {"images_per_second": rate, "faces_per_second": rate * faces}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=pathlib.Path, default=ROOT / "../shared/images", help="a folder of photographs")
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "../shared/models", help="scrfd_2.5g_bnkps, face_detection_yunet_2023mar, mobilefacenet and the int8bq files of the opencv pack")
    parser.add_argument("--web-like", type=int, default=0, metavar="N", help="measure with N images made from them, 200 to 4,000 pixels")
    parser.add_argument("--passes", type=int, default=2, help="number of passes over the folder per round")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if not arguments.images.is_dir() or not arguments.models.is_dir():
        sys.exit("bench: --images and --models must be folders")
    peer = python("pipeline", PIPELINE_PACKAGES)
    opencv = python("opencv", OPENCV_PACKAGES)
    release = build_release()
    with tempfile.TemporaryDirectory(prefix="facecrawl-bench-") as scratch:
        scratch = pathlib.Path(scratch)
        models, pair = link_models(arguments.models, scratch)
        if arguments.web_like:
            pictures = scratch / "web-like"
            pictures.mkdir()
            subprocess.run([peer, PEERS / "web_like.py", arguments.images, pictures, str(arguments.web_like)], check=True)
        else:
            pictures = link_pictures(arguments.images, scratch)
        passes = arguments.passes
        say(f"{len(list(pictures.iterdir()))} pictures, {passes} passes a round")
        embedder, yunet = arguments.models / "mobilefacenet.onnx", arguments.models / "face_detection_yunet_2023mar.onnx"
        blocks = [arguments.models / f"{name}_int8bq.onnx" for name in ("face_detection_yunet_2023mar", "face_recognition_sface_2021dec")]
        contestants = {
            "insightface": lambda: last_json([peer, PEERS / "insightface_pipeline.py", pair, pictures, passes, 1]),
            "insightface x2": lambda: last_json([peer, PEERS / "insightface_pipeline.py", pair, pictures, passes, 2]),
            "opencv": lambda: last_json([peer, PEERS / "opencv_pipeline.py", yunet, embedder, pictures, passes]),
            "opencv sface": lambda: last_json([opencv, PEERS / "opencv_sface_pipeline.py", *blocks, pictures, passes]),
        }
        described = models / "packs.toml"
        made = {pack["name"] for pack in tomllib.loads(described.read_text())["pack"]} if described.exists() else set()
        own = {pack: (pack.removesuffix(" pack"), FP32) for pack in [*OURS, *sorted(made & {f"{pack}-int8" for pack in OURS})]}
        own["opencv pack-auto"] = ("opencv", {"CPU_BACKEND": "auto"})
        if OPENVINO.exists():
            bf16 = {"CPU_BACKEND": "openvino-bf16", "ORT_DYLIB_PATH": str(OPENVINO)}
            own |= {f"{pack}-bf16": (pack.removesuffix(" pack"), bf16) for pack in OURS}
        for name, (pack, settings) in own.items():
            contestants[name] = lambda pack=pack, settings=settings: bench(release, pack, models, pictures, passes, **settings)
        for pack in OURS:
            for operation in MODELS:
                contestants[f"{pack} {operation}"] = lambda pack=pack, operation=operation: bench(release, pack.removesuffix(" pack"), models, pictures, passes, operation, **FP32)
        results = rounds(contestants, arguments.rounds)
        for pack in OURS:
            results[f"{pack} limit"] = [limit(*one) for one in zip(results[pack], *(results[f"{pack} {operation}"] for operation in MODELS))]
    rivals = {"research": ["insightface", "insightface x2"], "compact": ["opencv"], "opencv pack": ["opencv sface"]}
    pairs = [(name, rival) for name in own for rival in rivals[name.split("-")[0]]]
    report = {
        "operation": "pipeline",
        "medians": medians(results, FIGURES),
        "ratios": {f"{mine} / {other}": ratios(results, "images_per_second", mine, other) for mine, other in pairs},
        "faces_ratios": {f"{mine} / {other}": ratios(results, "faces_per_second", mine, other) for mine, other in pairs},
        "shares_of_the_limit": {pack: ratios(results, "images_per_second", pack, f"{pack} limit") for pack in OURS},
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
