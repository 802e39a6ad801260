"""Provides models and images for the programs of `bench pipeline` and `bench http`, and runs
`facecrawl bench` with them."""
from _build import environment
from _run import last_json

PIPELINE_PACKAGES = ["insightface==2.1", "onnxruntime==1.31.1", "opencv-python==5.0.0.93", "opencv-python-headless==5.0.0.93"]
# The next version, 5.0, cannot run block-quantised files.
OPENCV_PACKAGES = ["opencv-python-headless==4.12.0.88", "numpy==2.2.6"]
KINDS = {".jpg", ".jpeg", ".png", ".webp"}


def link_models(models, scratch):
    """Returns a models folder for facecrawl with all models and their packs.toml, and a folder with
    only SCRFD and MobileFaceNet for FaceAnalysis."""
    own, pair = scratch / "models", scratch / "pair"
    for folder, names in ((own, [model.name for pattern in ("*.onnx", "packs.toml") for model in models.glob(pattern)]), (pair, ["scrfd_2.5g_bnkps.onnx", "mobilefacenet.onnx"])):
        folder.mkdir()
        for name in names:
            (folder / name).symlink_to((models / name).resolve())
    return own, pair


def link_pictures(images, scratch):
    pictures = scratch / "pictures"
    pictures.mkdir()
    for picture in images.iterdir():
        if picture.suffix.lower() in KINDS:
            (pictures / picture.name).symlink_to(picture.resolve())
    return pictures


def bench(release, pack, models, images, passes, operation="pipeline", **settings):
    """Runs `facecrawl bench` on the images of the folder, with at least `passes` passes and with
    the additional variables `settings`."""
    count = len(list(images.iterdir()))
    # The number of passes is chosen so that the images divide evenly into iterations of eight.
    # Otherwise the last pass would skip the last images of the folder.
    while count * passes % 8:
        passes += 1
    own = {"MODEL_PACK": pack, "MODELS_DIR": str(models), "ACCEPT_LICENSE": "true", "DETECTION_PASSES": "single", "LOG_LEVEL": "warn", **settings}
    size = ["--batch-size", 8, "--iterations", count * passes // 8, "--warmup", min(-(-count // 8), 6)]
    command = [release / "facecrawl", "bench", "--no-gpu", "--operation", operation, "--images", images, *size, "--json", "-"]
    side = last_json(command, env=environment(**own))["benchmark_results"][operation]["original"]["gpu_false"]
    return {
        "images_per_second": side["mean_throughput"],
        "faces_per_second": side["faces_per_second"],
        "cpu_ms_per_image": side["cpu_ms_per_image"],
        "stages": side["stages"],
    }
