"""Makes the images of `bench e2e`: `mix.py FOLDER COUNT DRAW`.

Writes FOLDER/pictures, and FOLDER/mix.json with the faces of each image and the make-up. DRAW is the
example of facecrawl-testing that paints people. Every image depends only on its number.
docs/measurements/MIX.md explains the shares.
"""
import collections
import json
import math
import multiprocessing
import pathlib
import statistics
import subprocess
import sys
import tempfile

import numpy
from PIL import Image

import mix_contents
from mix_files import save

# Percent of the images by format.
FACELESS = {"jpg": 35, "png": 35, "webp": 15, "gif": 14, "avif": 1}
WITH_FACES = {"jpg": 64, "png": 10, "webp": 20, "gif": 2, "avif": 4}
# Percent of the faceless images of a format by content.
CONTENTS = {
    "jpg": {"landscape": 60, "product": 30, "screenshot": 10},
    "png": {"logo": 20, "screenshot": 20, "chart": 10, "product": 30, "landscape": 20},
    "webp": {"landscape": 45, "product": 40, "logo": 15},
    "gif": {"logo": 20, "chart": 10, "product": 30, "landscape": 40},
    "avif": {"landscape": 60, "product": 40},
}
# Percent by width / height.
ASPECTS = {1 / 1: 33, 4 / 3: 24, 3 / 2: 17, 16 / 9: 12, 2 / 3: 14}
PEOPLE = {1: 68, 2: 20, 3: 7, 4: 3, 5: 2}
WIDTHS = statistics.NormalDist(math.log(600), 0.75)
NARROWEST, WIDEST, MOST_PIXELS = 100, 4000, 12e6
# GIFs, logos and charts are rarely large.
WIDEST_OF = {"gif": 800, "logo": 1600, "chart": 1600}
# Minimum height in pixels at which every detector finds a head.
LEAST_HEAD = 50
SEED = 1
# The fractional parts of the multiples of these numbers fill the unit cube evenly (a Kronecker
# sequence; the number is the root of x^6 = x + 1). Small mixes therefore have the same shares as
# large ones.
STEPS = [1.1347241384015194**-power for power in range(1, 6)]


def pick(shares, at):
    """Returns the key at the fraction `at` of the cumulated shares."""
    left = at * sum(shares.values())
    for key, share in shares.items():
        left -= share
        if left < 0:
            return key
    return key


def plan(number):
    """Returns format, content, width, aspect ratio and number of people of an image. Every fourth image has
    faces."""
    faces = number % 4 == 3
    index = number // 4 if faces else number - number // 4
    kind_at, width_at, aspect_at, content_at, people_at = ((0.5 + (index + 1) * step) % 1 for step in STEPS)
    kind = pick(WITH_FACES if faces else FACELESS, kind_at)
    content = "people" if faces else pick(CONTENTS[kind], content_at)
    widest = min(WIDEST_OF.get(kind, WIDEST), WIDEST_OF.get(content, WIDEST))
    aspect = pick(ASPECTS, aspect_at)
    width = min(max(math.exp(WIDTHS.inv_cdf(width_at)), NARROWEST), widest, math.sqrt(MOST_PIXELS * aspect))
    return kind, content, round(width), aspect, pick(PEOPLE, people_at)


def heads(numbers, width, height, people):
    """Returns people side by side, with heads of 12 to 60 % of the shorter side."""
    people = max(1, min(people, width // LEAST_HEAD))
    slot, least = width / people, max(LEAST_HEAD, 0.12 * min(width, height))
    most = max(least, min(0.6 * min(width, height), 1.2 * slot))
    found = []
    for place in range(people):
        tall = float(math.exp(numbers.uniform(math.log(least), math.log(most))))
        spare = [max(0.0, slot - tall), max(0.0, height - 1.1 * tall)]
        x = place * slot + slot / 2 + numbers.uniform(-0.4, 0.4) * spare[0]
        y = 0.55 * tall + numbers.uniform(0.1, 0.6) * spare[1]
        found.append({"person": int(numbers.integers(400)), "x": float(x), "y": float(y), "height": tall, "turn": float(numbers.uniform(-0.7, 0.7))})
    # People whose heads are larger stand in front.
    return sorted(found, key=lambda head: head["height"])


def scene(numbers, width, height, people, draw):
    """Returns an image with people, and their faces."""
    back = (mix_contents.landscape if numbers.random() < 0.5 else mix_contents.wall)(numbers, width, height)
    with tempfile.NamedTemporaryFile(suffix=".rgb") as pixels:
        pixels.write(back.tobytes())
        pixels.flush()
        asked = [{"pixels": pixels.name, "width": width, "heads": heads(numbers, width, height, people)}]
        done = subprocess.run([draw, "people"], input=json.dumps(asked), check=True, capture_output=True, text=True)
        image = Image.frombytes("RGB", (width, height), pathlib.Path(pixels.name).read_bytes())
    return image, [[round(value, 1) for value in box] for box in json.loads(done.stdout)[0]]


def make(task):
    """Writes one image and returns its entry in mix.json."""
    number, folder, draw = task
    numbers = numpy.random.default_rng([SEED, number])
    kind, content, width, aspect, people = plan(number)
    height, faces = max(64, round(width / aspect)), []
    if content != "people":
        image = getattr(mix_contents, content)(numbers, width, height)
    else:
        image, faces = scene(numbers, width, height, people, draw)
    path = folder / "pictures" / f"{number:05}.{kind}"
    coded = save(numbers, image, kind, content, path)
    return {"name": path.name, "content": content, "coding": coded, "width": image.size[0], "height": image.size[1], "bytes": path.stat().st_size, "faces": faces}


def percentiles(values, shares=(10, 25, 50, 75, 90, 100)):
    return {f"p{share}": round(float(numpy.percentile(values, share)), 3) for share in shares}


def bits(one):
    return 8 * one["bytes"] / one["width"] / one["height"]


def count(key, pictures):
    return dict(sorted(collections.Counter(one[key] for one in pictures).items()))


def summary(pictures):
    """Returns the make-up, for comparison with the sources."""
    formats = {}
    for one in pictures:
        formats.setdefault(one["name"].split(".")[1], []).append(one)
    return {
        "pictures": len(pictures),
        "faces": sum(len(one["faces"]) for one in pictures),
        "contents": count("content", pictures),
        "width": percentiles([one["width"] for one in pictures]),
        "megapixels": percentiles([one["width"] * one["height"] / 1e6 for one in pictures]),
        "mean_megapixels": round(statistics.mean(one["width"] * one["height"] / 1e6 for one in pictures), 3),
        "kilobytes": percentiles([one["bytes"] / 1e3 for one in pictures]),
        "bits_per_pixel": percentiles([bits(one) for one in pictures]),
        "formats": {kind: {"pictures": len(among), "median_bits_per_pixel": round(statistics.median(map(bits, among)), 2), "coding": count("coding", among)} for kind, among in sorted(formats.items())},
    }


def main():
    folder, count, draw = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    (folder / "pictures").mkdir(parents=True)
    tasks = [(number, folder, draw) for number in range(count)]
    with multiprocessing.Pool() as pool:
        pictures = pool.map(make, tasks, chunksize=4)
    made = summary(pictures)
    (folder / "mix.json").write_text(json.dumps({"summary": made, "pictures": pictures}, indent=1))
    print(json.dumps(made, indent=2))


if __name__ == "__main__":
    main()
