"""Pictures of a page that is read in steps: the whole one for its layout, and each of its parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from vlm.errors import ImageError
from vlm.limits import MAX_PAGE_BLOCKS, MAX_PAGE_COVER
from vlm.processing.media.images import Detail, load_image
from vlm.registry.page_steps import Block, PageSteps

TURNS = {90: Image.Transpose.ROTATE_90, 180: Image.Transpose.ROTATE_180, 270: Image.Transpose.ROTATE_270}


class PageImage:
    """A page's picture, read when its layout is asked for and kept until the page has been read."""

    def __init__(self, source: Any, steps: PageSteps):
        """`source`: what `load_image` takes."""
        self._steps = steps
        self._source: Any = source
        self._image: Image.Image | None = None

    def picture(self, detail: Detail | None = None) -> Image.Image:
        """Returns the whole page as its layout is read. Raises ImageError."""
        self._image = load_image(self._source)
        self._source = None  # its bytes are not kept beside it
        return self._image.resize(self._steps.layout_size, Image.Resampling.BICUBIC)

    def part(self, block: Block) -> Image.Image:
        """Returns a part of the page, upright, of a shape that the model reads."""
        assert self._image is not None
        sides = (*self._image.size, *self._image.size)
        left, top, right, bottom = (round(share * side) for share, side in zip(block.box, sides, strict=True))
        box = (left, top, max(right, left + 1), max(bottom, top + 1))  # of a small page a part may have no pixel
        image = self._image.crop(box)
        turned = image.transpose(TURNS[block.angle]) if block.angle else image
        return _readable(turned, self._steps)


@dataclass(frozen=True)
class PagePart:
    """A part of a page, cut out when it is needed."""

    page: PageImage
    block: Block

    def picture(self, detail: Detail | None = None) -> Image.Image:
        return self.page.part(self.block)


def check_blocks(blocks: Sequence[Block]) -> None:
    """Raises ImageError for more parts than a page has, and for parts that cover it many times over."""
    if len(blocks) > MAX_PAGE_BLOCKS:
        raise ImageError(
            f"the page's layout has {len(blocks):,} parts, at most {MAX_PAGE_BLOCKS:,} are read; cut the page into"
            " smaller ones.",
            "layout",
        )
    if (cover := sum(block.area for block in blocks)) > MAX_PAGE_COVER:
        raise ImageError(
            f"the parts of the page's layout cover it {cover:.0f} times, at most {MAX_PAGE_COVER} times is read: the"
            " layout is wrong; ask about the page in a prompt, or read it with another model.",
            "layout",
        )


def _readable(image: Image.Image, steps: PageSteps) -> Image.Image:
    """Returns a picture with a white margin where it is too slim, scaled up where it is too small."""
    width, height = image.size
    wide, high = (max(side, math.ceil(max(image.size) / steps.max_aspect)) for side in image.size)
    if (wide, high) != image.size:
        margined = Image.new("RGB", (wide, high), "white")
        margined.paste(image, ((wide - width) // 2, (high - height) // 2))
        image = margined
    if (side := min(image.size)) < steps.min_side:
        scale = steps.min_side / side
        size = (math.ceil(image.width * scale), math.ceil(image.height * scale))
        image = image.resize(size, Image.Resampling.BICUBIC)
    return image
