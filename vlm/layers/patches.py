"""Images of any size as rows of patches, several of them packed into one pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vlm.config import VisionConfig


@dataclass(frozen=True)
class PatchedVisionConfig(VisionConfig):
    """A network that reads images of any size up to `image_size`, a row a patch; of its rows, squares of `merge_size`
    to a side become one each, and what is left at the right and at the bottom none."""

    patch_size: int
    merge_size: int

    @property
    def num_features(self) -> int:
        return self.rows_of(*self.image_size)

    @property
    def min_rows(self) -> int:
        return 1

    @property
    def fixed_size(self) -> bool:
        return False

    @property
    def shapes(self) -> str:
        sides = f"multiples of {self.patch_size} from {self.patch_size * self.merge_size}"
        return f"({self.num_channels}, height, width), {sides} up to {self.image_size[0]} × {self.image_size[1]}"

    def takes(self, height: int, width: int) -> bool:
        least = self.patch_size * self.merge_size
        sides = zip((height, width), self.image_size, strict=True)
        return all(least <= side <= most and side % self.patch_size == 0 for side, most in sides)

    def grid_of(self, height: int, width: int) -> tuple[int, int]:
        """Returns the rows and columns of patches."""
        return height // self.patch_size, width // self.patch_size

    def rows_of(self, height: int, width: int) -> int:
        rows, columns = self.grid_of(height, width)
        return (rows // self.merge_size) * (columns // self.merge_size)


class PackedPatches(NamedTuple):
    """The patches of several images, one after the other, each image's row by row."""

    patches: Tensor  # [R, C · side²]
    positions: Tensor  # [2, R] int32: each one's row and column in its image
    squares: Tensor  # [S · merge²] int32: those that become one row of features, one square after the other
    counts: list[int]  # patches of each image


def pack(images: Iterable[Tensor], config: PatchedVisionConfig) -> PackedPatches:
    """Packs pixel values [C, H, W] of sizes that the network takes, on their device."""
    pixels = list(images)
    grids = [config.grid_of(*image.shape[1:]) for image in pixels]
    counts = [rows * columns for rows, columns in grids]
    begins = np.cumsum([0, *counts[:-1]])
    places = [_places(*grid, config.merge_size) for grid in grids]
    squares = [squares + begin for (_, squares), begin in zip(places, begins, strict=True)]
    put = lambda part: torch.from_numpy(part).to(pixels[0].device, torch.int32, non_blocking=True)  # noqa: E731
    return PackedPatches(
        torch.cat([_patches(image, config.patch_size) for image in pixels]),
        put(np.concatenate([positions for positions, _ in places], 1)),
        put(np.concatenate(squares)),
        counts,
    )


def _patches(pixels: Tensor, side: int) -> Tensor:
    """[C, rows · side, columns · side] -> [rows · columns, C · side²], the values of a patch as a convolution's"""
    channels, height, width = pixels.shape
    x = pixels.view(channels, height // side, side, width // side, side)
    return x.permute(1, 3, 0, 2, 4).reshape(-1, channels * side * side)


@lru_cache(maxsize=64)
def _places(rows: int, columns: int, merge: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the positions [2, rows · columns] of an image's patches, and the numbers of those of each square."""
    numbers = np.arange(rows * columns).reshape(rows, columns)
    down, across = rows // merge, columns // merge
    squares = numbers[: down * merge, : across * merge].reshape(down, merge, across, merge)
    return np.indices((rows, columns)).reshape(2, -1), squares.transpose(0, 2, 1, 3).reshape(-1)
