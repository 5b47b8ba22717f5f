"""How pictures of extreme shapes are made fit for a model, before they become tensors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vlm.limits import MAX_PADDED_PIXELS
from vlm.registry.images.transforms import Settings

if TYPE_CHECKING:
    from PIL import Image

SLIMMEST = 64  # longest side over shortest
LONGEST_SLIVER = 2**14  # pixels: padded, it has 4 million


def as_it_is(image: Image.Image, settings: Settings) -> Image.Image:
    """Returns the picture itself, whatever its shape."""
    return image


def pad_sliver(image: Image.Image, settings: Settings) -> Image.Image:
    """Pads slivers with white: scaled to a frame's height they would have a width of no pixel."""
    from PIL import Image

    if not is_sliver(image.height, image.width):
        return image
    image = shrink(image, LONGEST_SLIVER)
    width, height = image.size
    least = -(-max(width, height) // SLIMMEST)
    padded = Image.new("RGB", (max(width, least), max(height, least)), "white")
    padded.paste(image, (0, 0))
    return padded


def is_sliver(height: int, width: int) -> bool:
    return max(height, width) > SLIMMEST * min(height, width)


def shrink(image: Image.Image, side: int) -> Image.Image:
    """Scales an image down until no side is longer."""
    from PIL import Image

    longest = max(image.size)
    if longest <= side:
        return image
    width, height = (max(1, round(length * side / longest)) for length in image.size)
    return image.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0)


def sampled(image: Image.Image, step: int) -> Image.Image:
    """Returns one pixel of `step`, in each direction."""
    from PIL import Image

    return image.resize((-(-image.width // step), -(-image.height // step)), Image.Resampling.NEAREST)


def shrink_for_square(image: Image.Image) -> Image.Image:
    """Scales an image down that, padded to a square, would have more than MAX_PADDED_PIXELS."""
    return shrink(image, max(math.isqrt(MAX_PADDED_PIXELS), math.isqrt(image.width * image.height)))


def pad_to_square(image: Image.Image, colour: tuple[int, ...]) -> Image.Image:
    """Returns the picture in the middle of a square."""
    from PIL import Image

    side = max(image.size)
    square = Image.new("RGB", (side, side), colour)
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return square
