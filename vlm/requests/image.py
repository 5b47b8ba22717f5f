"""Images of a request, ready for the visual encoder, each with its own number of feature rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from vlm.requests.content_key import content_key
from vlm.requests.pixels import ImagePixels, Normalization, pixel_digest, pixel_values

if TYPE_CHECKING:
    from torch import Tensor

    from vlm.config import VisionConfig

GLANCED = 256  # values that a glance takes


@dataclass(frozen=True, eq=False)
class Image:
    """Holds one image's pixels, and what a network's configuration says of an image of that size."""

    pixels: Tensor  # [C, H, W]: levels uint8 with a normalization, else pixel values float32
    rows: int  # that its features take
    grid: tuple[int, ...] | None = None  # of its rows: down and across; None where nothing depends on it
    normalization: Normalization | None = None
    digest: bytes | None = None  # of the pixels, where it is known
    picture_size: tuple[int, int] | None = None  # (width, height) of the picture; None: pixels were given

    @classmethod
    def from_pixels(cls, pixels: Tensor, vision: VisionConfig) -> Image:
        """Makes an image of pixel values [C, H, W] float32, of a size that the network takes."""
        height, width = pixels.shape[1:]
        return cls(pixels, vision.rows_of(height, width), vision.grid_of(height, width))

    @classmethod
    def from_processor(cls, image: ImagePixels, vision: VisionConfig) -> Image:
        """Makes an image of what an image processor gave, of a size that the network takes."""
        import torch

        own = cls.from_pixels(torch.from_numpy(image.pixels), vision)
        said = {"normalization": image.normalization, "digest": image.digest, "picture_size": image.picture_size}
        return replace(own, **said)

    @property
    def size(self) -> tuple[int, int]:
        """Returns the (width, height) of the picture, or of the pixels where these are all that was given."""
        height, width = self.pixels.shape[1:]
        return self.picture_size or (width, height)

    @property
    def values(self) -> Tensor:
        """Returns its pixel values [C, H, W] float32."""
        return pixel_values(self.pixels, self.normalization)

    @cached_property
    def key(self) -> bytes:
        """Returns a hash of its pixels, their shape and its grid: equal images have equal features."""
        digest = self.digest or pixel_digest(self.pixels.numpy(), self.normalization)
        return content_key(repr(self.grid).encode(), digest)

    @cached_property
    def glance(self) -> bytes:
        """Returns a hash of a few of its pixels, which takes microseconds: images that differ in it are not equal."""
        values = self.pixels.reshape(-1)
        few = values[:: max(1, len(values) // GLANCED)].numpy().tobytes()
        return content_key(repr((self.grid, self.pixels.shape)).encode(), few)

    def compute_key(self) -> None:
        """Computes its key: that takes milliseconds, which the engine's thread has not where it decodes."""
        _ = self.key
