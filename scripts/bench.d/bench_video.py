"""Measures the analysis of a video, compared with loops over its frames as people write them today.

Every round runs each of these on the same film. All of them use two processors. Models are loaded
and used before the clock starts:
  insightface loop   cv2.VideoCapture, FaceAnalysis (SCRFD 2.5G, MobileFaceNet) on every frame
  yunet loop         cv2.VideoCapture, FaceDetectorYN (YuNet), warpAffine, MobileFaceNet in ONNX
                     Runtime on every frame
  sface loop         cv2.VideoCapture, FaceDetectorYN (YuNet) and FaceRecognizerSF (SFace) of OpenCV
                     4.12 with the int8bq files on every frame
  PROGRAM keyframes  PyAV with the same programs on keyframes
  research, compact, opencv
                     `facecrawl bench --operation video` with the models of insightface, yunet and
                     sface in FP32, with `fps=5` and `auto`
The loops read the first --slice seconds of the film, because their speed does not change. The
report contains medians over the rounds, and medians of the ratios within each round. The film is
drawn and made once, unless --film names one. Its licence and that of the models apply.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from _build import ROOT, environment, release as build_release, say
from _packs import OPENCV_PACKAGES, PIPELINE_PACKAGES, link_models
from _rivals import PEERS, python
from _run import last_json, medians, ratios, rounds

PROCESSORS = 2
# The newest version for Python 3.11.
READER = ["av==18.1.0"]
RIVALS = {"research": "insightface", "compact": "yunet", "opencv": "sface"}
SAMPLINGS = ["fps=5", "auto"]
FIGURES = ["times_real_time", "cpu_seconds_per_minute", "frames", "faces", "share_of_decode_limit", "peak_resident_mb", "decode_cpu_seconds_per_minute"]


def film(release, minutes):
    """Returns a film of 1080p and 25 frames per second with a keyframe every two seconds."""
    path = ROOT / ".runtime/bench" / f"film-{minutes}.mp4"
    if not path.exists():
        say(f"making {path.relative_to(ROOT)}")
        path.parent.mkdir(parents=True, exist_ok=True)
        # A film that is not complete must not be used later.
        unfinished = path.with_name(f"unfinished-{path.name}")
        size = ["--width", "1920", "--height", "1080", "--keyframe-interval", "50"]
        subprocess.run([release / "examples/film", unfinished, *size, "--minutes", str(minutes)], check=True, stdout=subprocess.DEVNULL, env=environment())
        unfinished.rename(path)
    return path


def facecrawl(release, pack, models, video, sampling):
    settings = {"MODEL_PACK": pack, "MODELS_DIR": str(models), "ACCEPT_LICENSE": "true", "LOG_LEVEL": "error", "CPU_BACKEND": "onnxruntime"}
    command = [release / "facecrawl", "bench", "--no-gpu", "--operation", "video", video, "--sampling", sampling, "--iterations", 1, "--json", "-"]
    side = last_json(command, env=environment(**settings))["benchmark_results"]["video"][sampling]["gpu_false"]
    cpu, alone = side["cpu_seconds_per_minute"], side["decoding"]["cpu_seconds_per_minute"]
    return {
        "times_real_time": side["times_real_time"]["median"],
        "cpu_seconds_per_minute": cpu["service"] + cpu["decoder"],
        "frames": side["frames"],
        "faces": side["faces"],
        "share_of_decode_limit": side["share_of_decode_limit"],
        "peak_resident_mb": side["resident_bytes"]["peak_together"] / 1e6,
        "decode_cpu_seconds_per_minute": alone["service"] + alone["decoder"],
    }


def contestants(release, scratch, models, video, length, names):
    """Returns name -> function."""
    own_models, pair = link_models(models, scratch)
    peer, opencv = python("video", [*PIPELINE_PACKAGES, *READER]), python("video-opencv", [*OPENCV_PACKAGES, *READER])
    plain = [models / "face_detection_yunet_2023mar.onnx", models / "mobilefacenet.onnx"]
    blocks = [models / f"{name}_int8bq.onnx" for name in ("face_detection_yunet_2023mar", "face_recognition_sface_2021dec")]
    programs = {
        "insightface": (peer, "insightface_pipeline", [pair]),
        "yunet": (peer, "opencv_pipeline", plain),
        "sface": (opencv, "opencv_sface_pipeline", blocks),
    }
    found = {}
    for pack in names:
        interpreter, pipeline, files = programs[RIVALS[pack]]

        def run(reader, seconds, interpreter=interpreter, pipeline=pipeline, files=files):
            return last_json([interpreter, "-W", "ignore", PEERS / "video_loop.py", reader, pipeline, video, seconds, *files])

        found[f"{RIVALS[pack]} loop"] = lambda run=run: run("frames", length)
        found[f"{RIVALS[pack]} keyframes"] = lambda run=run: run("keyframes", 0)
        for sampling in SAMPLINGS:
            found[f"{pack} {sampling}"] = lambda pack=pack, sampling=sampling: facecrawl(release, pack, own_models, video, sampling)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--film", type=pathlib.Path, help="the video, instead of a drawn one")
    parser.add_argument("--minutes", type=int, default=5, help="length of the drawn film")
    parser.add_argument("--slice", type=float, default=50, metavar="SECONDS", help="part of the film that the loops read")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--packs", nargs="+", choices=list(RIVALS), default=list(RIVALS))
    parser.add_argument("--models", type=pathlib.Path, default=ROOT / "../shared/models", help="the models of `bench pipeline`")
    arguments = parser.parse_args()
    if not arguments.models.is_dir() or (arguments.film and not arguments.film.is_file()):
        sys.exit("bench: --models must be a folder, and --film a file")
    release = build_release()
    video = arguments.film.resolve() if arguments.film else film(release, arguments.minutes)
    # The programs inherit this, and choose their numbers of threads accordingly.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:PROCESSORS])
    with tempfile.TemporaryDirectory(prefix="facecrawl-bench-") as scratch:
        every = contestants(release, pathlib.Path(scratch), arguments.models.resolve(), video, arguments.slice, arguments.packs)
        results = rounds(every, arguments.rounds)
    pairs = [(f"{pack} {sampling}", f"{RIVALS[pack]} {reader}") for pack in arguments.packs for sampling in SAMPLINGS for reader in ("loop", "keyframes")]
    report = {
        "operation": "video",
        "medians": medians(results, FIGURES),
        "ratios": {f"{mine} / {other}": ratios(results, "times_real_time", mine, other) for mine, other in pairs},
        "cpu_ratios": {f"{other} / {mine}": ratios(results, "cpu_seconds_per_minute", other, mine) for mine, other in pairs},
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
