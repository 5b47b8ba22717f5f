"""Images of a request, ready for the visual encoder, each with its own number of feature rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from vlm.requests.content_key import content_key

if TYPE_CHECKING:
    from torch import Tensor

    from vlm.config import VisionConfig


@dataclass(frozen=True, eq=False)
class Image:
    """Holds one image's pixels, and what a network's configuration says of an image of that size."""

    pixels: Tensor  # [C, H, W] float32
    rows: int  # that its features take
    grid: tuple[int, ...] | None = None  # of patches: (t, h, w) or (h, w); None where the network needs none

    @classmethod
    def from_pixels(cls, pixels: Tensor, vision: VisionConfig) -> Image:
        """Makes an image of pixels [C, H, W] float32, of a size that the network takes."""
        height, width = pixels.shape[1:]
        return cls(pixels, vision.rows_of(height, width), vision.grid_of(height, width))

    @cached_property
    def key(self) -> bytes:
        """Returns a hash of its pixels, their shape and its grid: equal images have equal features."""
        shape = repr((tuple(self.pixels.shape), self.grid))
        return content_key(shape.encode(), self.pixels.flatten().numpy().data)

    def hashed(self) -> Image:
        """Returns itself once its key is computed: that takes milliseconds, which the engine's thread has not."""
        _ = self.key
        return self
