"""Images, videos and archives as arguments: files, bytes, images of Pillow and arrays of numpy.

An image of Pillow needs Pillow, and an array needs numpy and Pillow. Other arguments need neither.
"""
from __future__ import annotations

import base64
import io
import os
import re
import sys
import threading
from collections.abc import Iterable
from typing import IO, Any, BinaryIO, Protocol, Union

from facecrawl._requests import Body, Bytes, File, Parts, given, is_binary_file, json_body

OCTETS = "application/octet-stream"
COPYING = threading.Lock()
IMAGE = "a path, a URL, bytes, a binary file, an image of Pillow or an array of numpy"


class PillowImage(Protocol):
    """An image of Pillow."""

    @property
    def mode(self) -> str: ...

    def save(self, fp: IO[bytes], format: str | None = None, **params: Any) -> None: ...


class Array(Protocol):
    """An array of numpy."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...

    def tobytes(self) -> bytes: ...


Image = Union[str, "os.PathLike[str]", bytes, bytearray, memoryview, BinaryIO, PillowImage, Array]
"""An image: a path, an http or https URL that the service fetches, the bytes of a file, a binary
file, an image of Pillow, or an array of numpy.

An array has the type uint8 and the shape (height, width, 3) in the order red, green, blue, or
(height, width) for grey. OpenCV returns blue, green, red; reverse it with `array[:, :, ::-1]`.
Images of Pillow and arrays are sent as their pixels are: an orientation in EXIF is not applied.

`AsyncClient` reads and encodes images in a thread. Do not change the image or the array before the
call returns.
"""

Upload = Union[str, "os.PathLike[str]", bytes, bytearray, memoryview, BinaryIO]
"""A video or an archive: a path, bytes, or a binary file. Files are read while they are sent."""


def is_url(value: object) -> bool:
    """Returns whether the value is the text of an http or https URL."""
    return isinstance(value, str) and re.match("https?://", value, re.IGNORECASE) is not None


def image_bytes(image: Image) -> bytes:
    """Returns the bytes of an image file. Pixels are encoded as PNG.

    Raises TypeError or ValueError if the image has another type or form.
    """
    if isinstance(image, (bytes, bytearray, memoryview)):
        return bytes(image)
    if isinstance(image, (str, os.PathLike)):
        with open(image, "rb") as file:
            return file.read()
    numpy, pillow = sys.modules.get("numpy"), sys.modules.get("PIL.Image")
    if numpy and isinstance(image, numpy.ndarray):
        return _png(_from_array(image))
    if pillow and isinstance(image, pillow.Image):
        return _png(_copy(image))
    if is_binary_file(image):
        content: bytes = image.read()  # type: ignore[union-attr]
        return content
    raise TypeError(f"an image is {IMAGE}, not a {type(image).__name__}")


def _from_array(array: Any) -> Any:
    is_grey = array.ndim == 2
    is_colour = array.ndim == 3 and array.shape[2] == 3
    if str(array.dtype) != "uint8" or not (is_grey or is_colour) or 0 in array.shape:
        raise ValueError(
            f"an array of the type {array.dtype} and the shape {array.shape} is not an image; "
            "allowed: uint8 with the shape (height, width, 3) or (height, width)"
        )
    try:
        import PIL.Image
    except ImportError:
        raise ImportError("arrays need Pillow: pip install pillow") from None
    return PIL.Image.fromarray(array)


def _copy(image: Any) -> Any:
    """Returns a copy of an image of Pillow, in a mode of `_png`.

    Several threads can send the same image. Pillow reads the file of an image at its first use, and
    keeps the state of an encoder in the image. Neither may happen in two threads at once.
    """
    with COPYING:
        return image.copy() if image.mode in ("RGB", "L") else image.convert("RGB")


def _png(image: Any) -> bytes:
    # Without compression, a large image could be larger than the service allows. The first level
    # takes a tenth of the time of the default, and its files are a few percent larger. Newer
    # versions of Pillow copy the orientation into the file unless `exif` is empty.
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1, exif=b"")
    return buffer.getvalue()


def image_body(image: Image | None, urls: bool = True, **sources: Any) -> Body:
    """Returns the body of an operation on one image.

    Exactly one argument is allowed: the image, or one of `sources`, which are the fields of a JSON
    body. If `urls` is False, the image cannot be a URL.
    """
    found = given(image=image, **sources)
    if len(found) != 1:
        names = ", ".join(["image", *sources])
        raise TypeError(f"exactly one of {names} is required; {len(found)} are given")
    if image is None:
        return json_body(found)
    if not is_url(image):
        return Bytes(image_bytes(image), OCTETS)
    if not urls:
        raise TypeError("`image` cannot be a URL here; `url` selects what was found at an address")
    return json_body({"url": image})


def _source(image: Image) -> dict[str, str]:
    if is_url(image):
        return {"url": str(image)}
    return {"image_base64": base64.b64encode(image_bytes(image)).decode()}


def pair_body(image_a: Image, image_b: Image) -> Body:
    """Returns the body of an operation on two images."""
    if is_url(image_a) or is_url(image_b):
        return json_body({"a": _source(image_a), "b": _source(image_b)})
    return Parts([("image_a", image_bytes(image_a)), ("image_b", image_bytes(image_b))])


def batch_body(images: Iterable[Image]) -> Body:
    """Returns the body of an operation on several images."""
    if isinstance(images, (str, os.PathLike, bytes, bytearray, memoryview)):
        raise TypeError(f"`images` is a list; each item is {IMAGE}")
    items = list(images)
    if any(is_url(item) for item in items):
        return json_body({"images": [_source(item) for item in items]})
    if not items:
        return json_body({"images": []})  # A form needs a part.
    return Parts([("image", image_bytes(item)) for item in items])


def upload_body(file: Upload | None, content_type: str, name: str, **sources: Any) -> Body:
    """Returns the body with a file that can be large. Exactly one argument is allowed: the file, or
    one of `sources`. `name` is the name of the operation's argument for the file."""
    found = given(**{name: file}, **sources)
    if len(found) != 1:
        names = " and ".join([name, *sources])
        raise TypeError(f"exactly one of {names} is required; {len(found)} are given")
    if file is None:
        return json_body(found)
    if is_url(file):
        if "url" not in sources:
            raise TypeError(f"`{name}` cannot be a URL; the service accepts only files here")
        return json_body({"url": file})
    if isinstance(file, (bytes, bytearray, memoryview)):
        return Bytes(bytes(file), content_type)
    if isinstance(file, (str, os.PathLike)) or is_binary_file(file):
        return File(file, content_type)
    raise TypeError(f"`{name}` is a path, bytes or a binary file, not a {type(file).__name__}")
