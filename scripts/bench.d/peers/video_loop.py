"""Measures a loop over the frames of a video as people write it today: `video_loop.py READER
VIDEO SECONDS ANALYSER MODEL...`.

READER is `loop` (cv2.VideoCapture, every frame) or `keyframes` (PyAV, which decodes keyframes only).
ANALYSER is a function of analysers.py.
Decoding and the models use two threads each. Frames after SECONDS are not read; 0 means the whole
file. Models are loaded and used once before the clock starts. Prints speed and CPU time.
"""
import json
import resource
import sys
import time

import cv2

import analysers

THREADS = 2


def every_frame(video):
    """Yields time in seconds and pixels of every frame."""
    capture = cv2.VideoCapture(video, cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, THREADS])
    if not capture.isOpened():
        sys.exit(f"cannot open {video}")
    rate = capture.get(cv2.CAP_PROP_FPS)
    number = 0
    while True:
        read, image = capture.read()
        if not read:
            return
        yield number / rate, image
        number += 1


def keyframes(video):
    """Yields time in seconds and pixels of every keyframe."""
    import av

    with av.open(video) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        stream.codec_context.thread_count = THREADS
        stream.codec_context.skip_frame = "NONKEY"
        for frame in container.decode(stream):
            yield frame.time, frame.to_ndarray(format="bgr24")


def length(video):
    """Returns the length of the film in seconds."""
    capture = cv2.VideoCapture(video, cv2.CAP_FFMPEG)
    return capture.get(cv2.CAP_PROP_FRAME_COUNT) / capture.get(cv2.CAP_PROP_FPS)


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main():
    reader, video, until, analyser, *models = sys.argv[1:]
    until = float(until)
    analyse = getattr(analysers, analyser)(*models, threads=THREADS)
    cv2.setNumThreads(THREADS)
    read = {"loop": every_frame, "keyframes": keyframes}[reader]
    analyse(next(read(video))[1])
    faces, number = 0, 0
    started, cpu = time.perf_counter(), cpu_seconds()
    for at, image in read(video):
        if until and at >= until:
            break
        faces += len(analyse(image))
        number += 1
    seconds, cpu = time.perf_counter() - started, cpu_seconds() - cpu
    film = until or length(video)
    result = {"frames": number, "faces": faces, "seconds": seconds, "times_real_time": film / seconds, "cpu_seconds_per_minute": 60 * cpu / film}
    result["peak_resident_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(result))


if __name__ == "__main__":
    main()
