"""Encodes the images of the mix of `bench e2e` in the formats of the web."""
from PIL import Image, ImageChops

FLAT = {"logo", "chart"}


def flat(image):
    """Returns the image without an alpha channel, on white."""
    if image.mode != "RGBA":
        return image.convert("RGB")
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image.getchannel("A"))
    return white


def save(numbers, image, kind, content, path):
    """Writes the file and returns how it is encoded."""
    if kind == "jpg":
        quality, progressive, full = int(numbers.integers(60, 93)), bool(numbers.random() < 0.4), bool(numbers.random() < 0.2)
        flat(image).save(path, quality=quality, progressive=progressive, subsampling=0 if full else 2)
        return f"{'progressive' if progressive else 'baseline'} {'4:4:4' if full else '4:2:0'}"
    if kind == "png":
        if numbers.random() < (0.6 if content in FLAT else 0.15):
            flat(image).quantize(256, dither=Image.Dither.FLOYDSTEINBERG).save(path)
            return "palette"
        image.save(path)
        return "alpha" if image.mode == "RGBA" else "truecolour"
    if kind == "webp":
        if content in FLAT or numbers.random() < 0.05:
            image.save(path, lossless=True, quality=50, method=2)
            return "lossless"
        image.save(path, quality=int(numbers.integers(60, 91)), method=3)
        return "lossy"
    if kind == "avif":
        flat(image).save(path, quality=int(numbers.integers(50, 76)), speed=9)
        return "4:2:0"
    return gif(numbers, image, content, path)


def gif(numbers, image, content, path):
    plain = flat(image).quantize(64 if content in FLAT else 256, dither=Image.Dither.FLOYDSTEINBERG)
    if numbers.random() >= 0.32:
        plain.save(path)
        return "still"
    step = max(1, image.size[0] // 20)
    frames = [ImageChops.offset(plain, step * number, 0) for number in range(1, int(numbers.integers(4, 13)))]
    for frame in frames:
        frame.putpalette(plain.getpalette())
    plain.save(path, save_all=True, append_images=frames, duration=100, loop=0)
    return "animated"
