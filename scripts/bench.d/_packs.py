"""Models and pictures as the contestants of `bench pipeline` and `bench http` take them, and our own bench over them."""
from _build import environment
from _run import last_json

PIPELINE_PACKAGES = ["insightface==2.1", "onnxruntime==1.31.1", "opencv-python==5.0.0.93", "opencv-python-headless==5.0.0.93"]
# The first version after it, 5.0, cannot run block-quantised files.
OPENCV_PACKAGES = ["opencv-python-headless==4.12.0.88", "numpy==2.2.6"]
KINDS = {".jpg", ".jpeg", ".png", ".webp"}


def link_models(models, scratch):
    """A models folder of ours with all of them and their packs.toml, and a folder with just SCRFD and MobileFaceNet for FaceAnalysis."""
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
    """`facecrawl bench` over the folder, `passes` times or some more, with further `settings` (variables)."""
    count = len(list(images.iterdir()))
    # A whole number of iterations of eight in flight: otherwise the last pass would leave out the folder's last pictures.
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
    }
