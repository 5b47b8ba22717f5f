"""Images of any size as rows of patches, several of them packed into one pass."""

from __future__ import annotations

import itertools
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
    to a side become one each, and what is left at the right and at the bottom none. Where some layers attend within
    windows, of `window` squares to a side, nothing is left."""

    patch_size: int
    merge_size: int

    @property
    def window(self) -> int | None:
        """Returns how many squares a window has to a side; None where all layers attend to whole images."""
        return None

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

    def patches_of(self, height: int, width: int) -> tuple[int, int]:
        """Returns the rows and columns of patches."""
        return height // self.patch_size, width // self.patch_size

    def grid_of(self, height: int, width: int) -> tuple[int, int]:
        rows, columns = self.patches_of(height, width)
        return rows // self.merge_size, columns // self.merge_size

    def rows_of(self, height: int, width: int) -> int:
        down, across = self.grid_of(height, width)
        return down * across


@dataclass(frozen=True)
class PatchLayout:
    """Where the patches of several images come in the rows of a pass: one image's after the other's, row by row, or
    window by window."""

    order: Tensor | None  # [R] int32: of each row its patch, as the images have them row by row; None: as they are
    positions: Tensor  # [2, R] int32: each one's row and column in its image
    squares: Tensor  # [S · merge²] int32: those that become one row of features, one square after the other
    counts: list[int]  # patches of each image
    windows: list[int]  # patches of each window, if there are any

    @classmethod
    def of(cls, images: Iterable[Tensor], config: PatchedVisionConfig, device: torch.device) -> PatchLayout:
        """Lays out images [C, H, W] of sizes that the network takes, on a device."""
        grids = [config.patches_of(*image.shape[1:]) for image in images]
        counts = [rows * columns for rows, columns in grids]
        begins = np.cumsum([0, *counts[:-1]])
        places = [_places(*grid, config.merge_size, config.window) for grid in grids]
        squares = [place.squares + begin for place, begin in zip(places, begins, strict=True)]
        orders = [place.order + begin for place, begin in zip(places, begins, strict=True) if place.order is not None]
        return cls(
            _uploaded(np.concatenate(orders), device) if orders else None,
            _uploaded(np.concatenate([place.positions for place in places], 1), device),
            _uploaded(np.concatenate(squares), device),
            counts,
            [patches for place in places for patches in place.windows],
        )

    def packed(self, images: Iterable[Tensor], config: PatchedVisionConfig) -> Tensor:
        """Returns the patches [R, C · side²] of pixel values [C, H, W]."""
        patches = torch.cat([_patches(image, config.patch_size) for image in images])
        return patches if self.order is None else patches[self.order]


class Places(NamedTuple):
    """Where the patches of an image come in its packed rows."""

    order: np.ndarray | None  # [R]: the number of each one's patch, row by row; None: as they are
    positions: np.ndarray  # [2, R]
    squares: np.ndarray  # [S · merge²]
    windows: list[int]


def _uploaded(numbers: np.ndarray, device: torch.device) -> Tensor:
    """Returns numbers as int32 on the device. Out of memory that is not pinned more than 64 KB may be copied only when
    all that a GPU was given before has ended, and the host waits for it."""
    part = torch.from_numpy(numbers.astype(np.int32))
    return part.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else part.to(device)


def _patches(pixels: Tensor, side: int) -> Tensor:
    """Maps [C, rows · side, columns · side] -> [rows · columns, C · side²], the values of a patch as a convolution's"""
    channels, height, width = pixels.shape
    x = pixels.view(channels, height // side, side, width // side, side)
    return x.permute(1, 3, 0, 2, 4).reshape(-1, channels * side * side)


@lru_cache(maxsize=64)
def _places(rows: int, columns: int, merge: int, window: int | None) -> Places:
    numbers = np.arange(rows * columns).reshape(rows, columns)
    down, across = rows // merge, columns // merge
    cut = numbers[: down * merge, : across * merge].reshape(down, merge, across, merge)
    squares = cut.transpose(0, 2, 1, 3).reshape(down, across, merge**2)
    positions = np.indices((rows, columns)).reshape(2, -1)
    if window is None:
        return Places(None, positions, squares.reshape(-1), [])
    corners = itertools.product(range(0, down, window), range(0, across, window))
    windows = [squares[y : y + window, x : x + window].reshape(-1) for y, x in corners]
    order = np.concatenate(windows)
    return Places(order, positions[:, order], np.argsort(order)[squares.reshape(-1)], [len(each) for each in windows])
