"""Draws the contents of the mix of `bench e2e`: landscapes, walls, products, screenshots, logos and
charts. Every function returns a Pillow image of the size that is asked for."""
import math

import numpy
from PIL import Image, ImageDraw, ImageFilter, ImageFont

WORDS = "the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which one you were her all she there would their we him been has when who will more no if out so said what up its about into than them can only other new some could time these two may then do first any my now such like our over man me even most made after also did many before must through back years where much your way well down should because each just those people how too little state good very make world still own see men work long get here between both life being under never day same another know while last might us great old year off come since against go came right used take three".split()


def noise(numbers, width, height, roughness):
    """Returns a field of 1/f noise with mean 0 and standard deviation 1. Each octave has
    `roughness` times the amplitude of the next coarser one."""
    octaves = max(1, int(math.log2(max(width, height) / 3)))
    field = None
    for octave in range(octaves, -1, -1):
        size = (-(-width // 2**octave), -(-height // 2**octave))
        detail = numbers.standard_normal((size[1], size[0]), dtype=numpy.float32)
        if field is None:
            field = detail
        else:
            field = numpy.asarray(Image.fromarray(field).resize(size, Image.Resampling.BICUBIC)) + roughness ** (octaves - octave) * detail
    return (field - field.mean()) / (field.std() + 1e-6)


def colour(numbers, low=0, high=256):
    return tuple(int(value) for value in numbers.integers(low, high, 3))


def muted(numbers, low, high):
    """Returns a colour with little saturation, as in photographs."""
    return tuple(int(value) for value in numpy.clip(numbers.uniform(low, high) + numbers.normal(0, 14, 3), 0, 255))


def gradient(*colours):
    """Returns a table of 256 colours between the given ones."""
    places = numpy.linspace(0, 255, len(colours))
    return numpy.stack([numpy.interp(numpy.arange(256), places, [one[channel] for one in colours]) for channel in range(3)], axis=1).astype(numpy.uint8)


def indices(field, middle=128, spread=48):
    return numpy.clip(field * spread + middle, 0, 255).astype(numpy.uint8)


def landscape(numbers, width, height):
    """A sky with clouds above land with the texture of a photograph."""
    roughness = numbers.uniform(1.0, 1.15)
    ground = noise(numbers, width, height, roughness)
    base = muted(numbers, 40, 150)
    dark, light = [int(value * 0.25) for value in base], [min(255, int(value * 1.5) + 30) for value in base]
    land = gradient(dark, base, muted(numbers, 60, 190), light)[indices(ground)]
    down = numpy.linspace(0, 1, height, dtype=numpy.float32)[:, None]
    clouds = noise(numbers, width, height, numbers.uniform(0.55, 0.8))
    sky = gradient(muted(numbers, 100, 180), muted(numbers, 170, 245))[numpy.clip(255 * down + 14 * clouds, 0, 255).astype(numpy.uint8)]
    horizon = numbers.uniform(0.02, 0.45) + 0.05 * noise(numbers, width, 1, 0.6)
    return Image.fromarray(numpy.where((down > horizon)[:, :, None], land, sky))


def wall(numbers, width, height):
    """A lit wall with some texture, as behind people in rooms."""
    base = muted(numbers, 120, 220)
    field = noise(numbers, width, height, numbers.uniform(0.9, 1.05)) * 0.7 + numpy.linspace(-1, 1, width, dtype=numpy.float32) * numbers.uniform(-1, 1)
    return Image.fromarray(gradient([value * 0.6 for value in base], base, [min(255, value * 1.2) for value in base])[indices(field)])


def product(numbers, width, height):
    """An object with shading and a shadow. The background is white, and transparent in the alpha
    channel."""
    across, down = width * numbers.uniform(0.4, 0.95), height * numbers.uniform(0.4, 0.9)
    x, y = numbers.random(2) * [width - across, height - down]
    box = [x, y, x + across, y + down]
    mask = Image.new("L", (width, height))
    draw = ImageDraw.Draw(mask)
    kind = numbers.integers(3)
    if kind == 0:
        draw.ellipse(box, fill=255)
    elif kind == 1:
        draw.rounded_rectangle(box, radius=min(across, down) * numbers.uniform(0.02, 0.3), fill=255)
    else:
        turns = numpy.sort(numbers.uniform(0, 2 * math.pi, 9))
        draw.polygon([(x + across / 2 * (1 + math.cos(turn)), y + down / 2 * (1 + math.sin(turn))) for turn in turns], fill=255)
    mask = mask.filter(ImageFilter.GaussianBlur(0.7))
    base = colour(numbers, 30, 220)
    light = numpy.linspace(1, -1, width, dtype=numpy.float32)[None, :] + numpy.linspace(0.6, -0.6, height, dtype=numpy.float32)[:, None]
    field = light + noise(numbers, width, height, numbers.uniform(1.0, 1.15)) * numbers.uniform(0.4, 0.8)
    texture = gradient([value * 0.35 for value in base], base, [min(255, value * 1.4 + 20) for value in base])
    small = (max(1, width // 8), max(1, height // 8))
    shadow = Image.new("L", small)
    ImageDraw.Draw(shadow).ellipse([box[0] / 8, box[3] / 8 - small[1] * 0.06, box[2] / 8, box[3] / 8 + small[1] * 0.04], fill=110)
    shadow = shadow.filter(ImageFilter.GaussianBlur(max(1, small[0] / 40))).resize((width, height), Image.Resampling.BICUBIC)
    image = Image.new("RGB", (width, height), "white")
    image.paste((60, 60, 66), mask=shadow)
    surface = Image.fromarray(texture[indices(field)])
    label(ImageDraw.Draw(surface), numbers, box)
    image.paste(surface, mask=mask)
    image.putalpha(Image.fromarray(numpy.maximum(numpy.asarray(mask), numpy.asarray(shadow))))
    return image


def label(draw, numbers, box):
    """Draws stripes and a word on an object."""
    left, top, right, bottom = box
    for _ in range(numbers.integers(0, 4)):
        across, down = numpy.sort(numbers.uniform(left, right, 2)), numpy.sort(numbers.uniform(top, bottom, 2))
        draw.rectangle([across[0], down[0], across[1], down[1]], fill=muted(numbers, 20, 240))
    size = (right - left) / 7
    draw.text((left + size, numbers.uniform(top, bottom - size)), str(numbers.choice(WORDS)), fill=muted(numbers, 0, 255), font=font(size))


def font(size):
    return ImageFont.load_default(max(6, int(size)))


def text(draw, numbers, box, size, fill):
    """Fills a box with lines of words."""
    left, top, right, bottom = box
    face = font(size)
    while top + size < bottom:
        line = " ".join(numbers.choice(WORDS, max(1, int((right - left) / size / 2.6))))
        draw.text((left, top), line, fill=fill, font=face)
        top += size * 1.5


def screenshot(numbers, width, height):
    """A page or a window with a bar, a column of boxes, paragraphs of text and small pictures."""
    dark = numbers.random() < 0.25
    back, ink, pane = ("#1e1f24", "#d6d7dc", "#2b2d34") if dark else ("#ffffff", "#24262b", "#f0f1f4")
    image = Image.new("RGB", (width, height), back)
    draw = ImageDraw.Draw(image)
    size = max(8, min(width, height) / numbers.uniform(24, 48))
    accent, bar, column = colour(numbers, 30, 210), size * 2.4, width * numbers.uniform(0.15, 0.3)
    draw.rectangle([0, 0, width, bar], fill=accent)
    text(draw, numbers, [size, bar * 0.3, width * 0.5, bar], size, "white")
    draw.rectangle([0, bar, column, height], fill=pane)
    text(draw, numbers, [size * 0.6, bar + size, column - size, height], size * 0.9, ink)
    top = bar + size
    while top < height:
        part, low = numbers.integers(4), min(height, top + size * numbers.uniform(4, 14))
        if part == 0 and low - top > 8:
            wide = int(min((low - top) * 1.5, width - column - 2 * size))
            if wide > 8:
                image.paste(landscape(numbers, wide, int(low - top)), (int(column + size), int(top)))
        elif part == 1:
            draw.rounded_rectangle([column + size, top, width - size, low], radius=size / 2, fill=pane, outline=accent)
            text(draw, numbers, [column + 2 * size, top + size / 2, width - 2 * size, low], size, ink)
        else:
            text(draw, numbers, [column + size, top, width - size, low], size, ink)
        top = low + size
    return image


def logo(numbers, width, height):
    """A few flat shapes and a word, on a transparent or plain background."""
    big = Image.new("RGBA", (2 * width, 2 * height), (255, 255, 255, 0) if numbers.random() < 0.5 else (*colour(numbers), 255))
    draw = ImageDraw.Draw(big)
    for _ in range(numbers.integers(1, 6)):
        x, y = numbers.uniform(0.1, 0.6, 2) * big.size
        side = numbers.uniform(0.2, 0.4) * min(big.size)
        getattr(draw, numbers.choice(["ellipse", "rectangle"]))([x, y, x + side, y + side], fill=(*colour(numbers), 255))
    size = min(big.size[1] * 0.3, big.size[0] / 5)
    draw.text((big.size[0] * 0.08, big.size[1] * numbers.uniform(0.3, 0.6)), str(numbers.choice(WORDS)).upper(), fill=(*colour(numbers, 0, 120), 255), font=font(size))
    return big.reduce(2)


def chart(numbers, width, height):
    """Bars or lines on a grid, with a title and labels."""
    image = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(image)
    size = max(8, min(width, height) / 28)
    left, top, right, bottom = size * 4, size * 3, width - size * 2, height - size * 3
    text(draw, numbers, [left, size, right * 0.8, size * 2.2], size * 1.1, "black")
    for step in range(6):
        y = bottom - (bottom - top) * step / 5
        draw.line([left, y, right, y], fill="#d8d8d8")
        draw.text((size, y - size / 2), str(step * 20), fill="#555555", font=font(size))
    count = int(numbers.integers(5, 24))
    wide = max(1.0, (right - left) / count)
    for series in range(numbers.integers(1, 4)):
        heights, fill = numpy.clip(numbers.normal(0.5, 0.2, count), 0.02, 1) * max(1.0, bottom - top), colour(numbers, 20, 220)
        places = [(left + wide * (index + 0.5), bottom - tall) for index, tall in enumerate(heights)]
        if series == 0:
            for x, y in places:
                draw.rectangle([x - wide * 0.35, y, x + wide * 0.35, max(y, bottom)], fill=fill)
        else:
            draw.line(places, fill=fill, width=max(1, int(size / 6)), joint="curve")
    return image
