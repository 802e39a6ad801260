"""Creates images that are typical of the web from a folder of photographs: `web_like.py IMAGES
FOLDER COUNT [LONGEST]`.

The longer sides have 200 to LONGEST (default 4,000) pixels, distributed evenly on a logarithmic
scale, and at most twice the length of the original. The files are JPEG of quality 70 to 92, but
every tenth file is a PNG and every tenth a WebP. The same folder always gives the same images.
"""
import pathlib
import random
import sys

import cv2


def main():
    source, target, count = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
    most = int(sys.argv[4]) if len(sys.argv) > 4 else 4000
    originals = [cv2.imread(str(file)) for file in sorted(source.iterdir()) if file.suffix.lower() in {".jpg", ".jpeg", ".png"}]
    originals = [image for image in originals if image is not None]
    numbers = random.Random(1)
    for index in range(count):
        image = originals[index % len(originals)]
        longest = max(image.shape[:2])
        side = min(200 * (most / 200) ** numbers.random(), 2 * longest)
        scale = side / longest
        image = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC)
        quality = numbers.randint(70, 92)
        kind = {0: "png", 5: "webp"}.get(index % 10, "jpg")
        options = {"jpg": [cv2.IMWRITE_JPEG_QUALITY, quality], "webp": [cv2.IMWRITE_WEBP_QUALITY, quality], "png": []}[kind]
        cv2.imwrite(str(target / f"{index:04}.{kind}"), image, options)


if __name__ == "__main__":
    main()
