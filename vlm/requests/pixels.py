"""Pixels of an image as processes and requests hold them: a picture's levels, or the values that a network takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from vlm.requests.content_key import content_key

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Normalization:
    """Maps a picture's levels (0 to 255) to pixel values: (level - mean) / std, by channel."""

    mean: tuple[float, ...]  # in levels
    std: tuple[float, ...]

    def __call__(self, levels: Tensor) -> Tensor:
        """Returns pixel values of levels [..., C, H, W] uint8, on their device, in float32."""
        mean, std = _columns(self, levels.device)
        return levels.float().sub_(mean).div_(std)


@dataclass(frozen=True, eq=False)
class ImagePixels:
    """What an image processor makes of a picture: levels and their normalization, a quarter of the bytes, or values."""

    pixels: np.ndarray  # [C, H, W]; levels uint8 with a normalization, else values float32
    normalization: Normalization | None
    digest: bytes | None  # of the pixels, where it is computed already
    picture_size: tuple[int, int] | None = None  # (width, height) of the picture; None: there was none

    @classmethod
    def of(cls, pixels: np.ndarray, normalization: Normalization | None = None) -> ImagePixels:
        """Makes them of pixels, which are hashed."""
        return cls(pixels, normalization, None).hashed()

    def hashed(self) -> ImagePixels:
        """Returns them with their digest, for which a process that makes pixels for others has the milliseconds."""
        return replace(self, digest=self.digest or pixel_digest(self.pixels, self.normalization))


def pixel_values(pixels: Tensor, normalization: Normalization | None) -> Tensor:
    """Returns the values of pixels [..., C, H, W]: of levels with a normalization, or values already."""
    return pixels if normalization is None else normalization(pixels)


def pixel_digest(pixels: np.ndarray, normalization: Normalization | None) -> bytes:
    """Returns a hash of an image's shape and pixels [C, H, W]."""
    return content_key(repr((pixels.shape, normalization)).encode(), pixels.reshape(-1).data)


@lru_cache(maxsize=64)
def _columns(normalization: Normalization, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns mean and std as [C, 1, 1]: copied to a device once, not with each batch."""
    import torch

    mean, std = (torch.tensor(each, device=device) for each in (normalization.mean, normalization.std))
    return mean[:, None, None], std[:, None, None]
