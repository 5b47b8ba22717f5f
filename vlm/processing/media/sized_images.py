"""Pictures that are no larger than what a model keeps of them needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from vlm.limits import MAX_PIXELS
from vlm.processing.media.images import Detail, check_size, damage, decoded, open_image

OVERSAMPLING = 1.5  # pixels that are drawn for one that is kept, in each direction: a page has margins


def sized(size: tuple[float, float], draw: Callable[[float], Image.Image], detail: Detail | None) -> Image.Image:
    """Returns a picture that is (height, width) at full size, drawn at the part of it that `detail` needs; again where
    so little of it is content that this would be enlarged."""
    scale = None if detail is None else detail.scale(size)
    if detail is None or scale is None:
        return draw(1.0)
    part = min(1.0, scale * OVERSAMPLING)
    picture = draw(part)
    while part < 1 and (enlarged := _enlarged(picture, size, detail)) > 1:
        part = min(1.0, part * enlarged * OVERSAMPLING)
        picture = draw(part)
    return picture


def _enlarged(picture: Image.Image, size: tuple[float, float], detail: Detail) -> float:
    """Returns the factor by which a picture's content is scaled; 1 for a picture that no other would be larger than."""
    is_full = min(picture.size) >= min(size) - 1  # whatever part of it was to be decoded
    return 1.0 if is_full else detail.scale(detail.content_size(picture)) or 0.0


def load_sized(
    source: Path | bytes, name: str, *, detail: Detail | None, max_pixels: int = MAX_PIXELS, checked: bool = False
) -> Image.Image:
    """Loads the first frame of an image file, or of its content, as RGB; a JPEG with `detail` no larger than what is
    kept of it needs. `checked`: its header was, before. Raises ImageError with `name`."""
    with open_image(source, name, checked=checked) as image:
        if detail is None or image.format != "JPEG":
            return decoded(image, name, max_pixels)
        check_size(image, name, max_pixels)
        size = image.height, image.width
    return sized(size, lambda part: _part(source, name, part), detail)


def _part(source: Path | bytes, name: str, part: float) -> Image.Image:
    """Returns a JPEG, whose decoder can scale, at an eighth, a quarter or a half that is no smaller than this part; or
    whole. Its header was checked, and its size."""
    with open_image(source, name, checked=True) as image:
        if part < 1:
            with damage(name):
                image.draft(None, (math.ceil(image.width * part), math.ceil(image.height * part)))
        return decoded(image, name)
