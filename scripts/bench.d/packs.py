"""Models, images and other programs of the comparisons, and `facecrawl bench` with them."""
import hashlib
import json
import shutil
import subprocess

from common import PEERS, ROOT, environment, last_json, python, say

INSIGHTFACE_PACKAGES = ["insightface==2.1", "onnxruntime==1.31.1", "opencv-python==5.0.0.93", "opencv-python-headless==5.0.0.93"]
# The next version, 5.0, cannot run block-quantised files.
OPENCV_PACKAGES = ["opencv-python-headless==4.12.0.88", "numpy==2.2.6"]
SCRAPY_PACKAGES = ["scrapy==2.19.0", "pillow==13.0.0"]
# The newest version for Python 3.11.
VIDEO_PACKAGES = ["av==18.1.0"]
# Other versions could encode other bytes.
MIX_PACKAGES = ["pillow==13.0.0", "numpy==2.4.6"]
KINDS = {".jpg", ".jpeg", ".png", ".webp"}
# The packs in FP32 with one view of each image: the same work as that of the other programs.
EQUAL = {"CPU_BACKEND": "onnxruntime", "DETECTION_PASSES": "single"}
# For each pack, a function of peers/analysers.py that runs the same models.
SAME_MODELS = {"research": "insightface", "compact": "opencv", "opencv": "opencv_sface"}


def link(files, folder):
    """Makes a folder with links to files."""
    folder.mkdir()
    for file in files:
        (folder / file.name).symlink_to(file.resolve())
    return folder


def link_models(models, folder):
    """Returns a models folder for facecrawl with all models and their packs.toml, without which
    downloads could change the folder of the user."""
    return link([model for pattern in ("*.onnx", "packs.toml") for model in models.glob(pattern)], folder / "models")


def link_pictures(images, folder):
    return link([image for image in images.iterdir() if image.suffix.lower() in KINDS], folder / "pictures")


def link_pair(models, folder):
    """Returns a folder with only SCRFD and MobileFaceNet, for FaceAnalysis."""
    return link([models / name for name in ("scrfd_2.5g_bnkps.onnx", "mobilefacenet.onnx")], folder / "pair")


def programs(models, folder):
    """Returns name of an analyser -> interpreter, and the arguments that select it and its models."""
    readers = [*SCRAPY_PACKAGES, *VIDEO_PACKAGES]
    peer, opencv = python("peers", [*INSIGHTFACE_PACKAGES, *readers]), python("peers-opencv", [*OPENCV_PACKAGES, *readers])
    blocks = [models / f"{name}_int8bq.onnx" for name in ("face_detection_yunet_2023mar", "face_recognition_sface_2021dec")]
    return {
        "insightface": (peer, ["insightface", link_pair(models, folder)]),
        "opencv": (peer, ["opencv", models / "face_detection_yunet_2023mar.onnx", models / "mobilefacenet.onnx"]),
        "opencv_sface": (opencv, ["opencv_sface", *blocks]),
    }


def settings(pack, models, **more):
    return environment(MODEL_PACK=pack, MODELS_DIR=models, ACCEPT_LICENSE="true", LOG_LEVEL="error", **more)


def bench(folder, pack, models, images, passes=1, operation="pipeline", **more):
    """Runs `facecrawl bench` on the images of a folder, with at least `passes` passes."""
    count = len(list(images.iterdir()))
    # The number of passes is chosen so that the images divide evenly into iterations of eight.
    # Otherwise the last pass would skip the last images of the folder.
    while count * passes % 8:
        passes += 1
    size = ["--batch-size", 8, "--iterations", count * passes // 8, "--warmup", min(-(-count // 8), 6)]
    command = [folder / "facecrawl", "bench", "--no-gpu", "--operation", operation, "--images", images, *size, "--json", "-"]
    answer = last_json(command, env=settings(pack, models, **{"DETECTION_PASSES": "single"} | more))
    side = answer["benchmark_results"][operation]["original"]["gpu_false"]
    named = {"images_per_second": side["mean_throughput"]}
    return named | {key: side[key] for key in ("faces_per_second", "cpu_ms_per_image", "stages")}


def mix(count, folder):
    """Returns the folder with `count` images of the mix in `pictures`, and its composition in
    mix.json. They are kept in .runtime/bench, and made again if the program that makes them has
    changed."""
    target = ROOT / ".runtime/bench" / f"mix-{count}"
    made_by = target / "made-by"
    wanted = hashlib.sha256(repr(MIX_PACKAGES).encode() + b"".join(path.read_bytes() for path in sorted(PEERS.glob("mix*.py")))).hexdigest()
    if not made_by.exists() or made_by.read_text() != wanted:
        say(f"making {count} images in {target.relative_to(ROOT)}")
        shutil.rmtree(target, ignore_errors=True)
        command = [python("mix", MIX_PACKAGES), PEERS / "mix.py", target, str(count), folder / "examples/draw"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        made_by.write_text(wanted)
    return target, json.loads((target / "mix.json").read_text())["summary"]
