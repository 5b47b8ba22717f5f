"""Pictures of any mode -> RGB of 8 bits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
from PIL import Image
from PIL.TiffImagePlugin import BITSPERSAMPLE, PHOTOMETRIC_INTERPRETATION, SAMPLEFORMAT, TiffImageFile

from vlm.processing.media.image_tags import upright

_STRIP = 2**20  # pixels that are converted at a time


def to_rgb(image: Image.Image) -> Image.Image:
    """Returns it upright in RGB: itself where it is so."""
    image = upright(image)
    if image.mode.startswith("I") or image.mode == "F":
        return _strip_by_strip(image, _to_8_bits(image))
    if image.has_transparency_data:
        return _strip_by_strip(image, _on_white)
    return as_rgb(image)


def as_rgb(image: Image.Image) -> Image.Image:
    """Returns it in RGB: itself where it is so, as a copy takes as long as to scale it."""
    image.load()
    return image if image.mode == "RGB" else image.convert("RGB")


def _strip_by_strip(image: Image.Image, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """Converts an image to RGB: what lies between takes several times its memory."""
    result = Image.new("RGB", image.size)
    for box in _strips(image):
        result.paste(convert(image.crop(box)), box)
    return result


def _strips(image: Image.Image) -> Iterator[tuple[int, int, int, int]]:
    columns = min(image.width, _STRIP)
    rows = max(1, _STRIP // columns)
    for top, left in itertools.product(range(0, image.height, rows), range(0, image.width, columns)):
        yield left, top, min(left + columns, image.width), min(top + rows, image.height)


def _on_white(image: Image.Image) -> Image.Image:
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def _to_8_bits(image: Image.Image) -> Callable[[Image.Image], Image.Image]:
    """Returns what turns a strip into 8 bits: Pillow's own conversion clips 16-bit grey to its lowest 256 values."""
    bits, has_sign = _samples(image)
    numbers = _numbers if has_sign or bits < 32 else _unsigned
    most = max(numbers(image.crop(box)).max() for box in _strips(image))
    fulls = [1.0, 255.0, *((65535.0, 2.0**32 - 1) if image.mode.startswith("I") else ())]
    full = min(next((full for full in fulls if most <= full), fulls[-1]), max(255.0, 2.0 ** (bits - has_sign) - 1))
    # a TIFF whose lowest value is white: of 8 bits Pillow turns it round
    is_negative = isinstance(image, TiffImageFile) and image.tag_v2.get(PHOTOMETRIC_INTERPRETATION) == 0

    def convert(strip: Image.Image) -> Image.Image:
        values = (numbers(strip) * (255.0 / full)).clip(0, 255).round()
        values = 255.0 - values if is_negative else values
        return Image.fromarray(values.astype(np.uint8)).convert("RGB")

    return convert


def _numbers(image: Image.Image) -> np.ndarray:
    return np.nan_to_num(np.asarray(image, dtype=np.float64))


def _unsigned(image: Image.Image) -> np.ndarray:
    return np.asarray(image, dtype=np.int32).view(np.uint32).astype(np.float64)


def _samples(image: Image.Image) -> tuple[int, bool]:
    """Returns how many bits a sample has, and whether one is its sign; Pillow has all of a TIFF as signed numbers of 32
    bits, or as 16 without a sign."""
    if not isinstance(image, TiffImageFile) or image.mode == "F":
        return 32, True
    [bits, *_], [kind, *_] = image.tag_v2.get(BITSPERSAMPLE, (1,)), image.tag_v2.get(SAMPLEFORMAT, (1,))
    return bits, kind == 2
