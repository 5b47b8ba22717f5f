"""The matrices of all adapters for one Linear, as kernels read them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

TILE = 64  # columns of a program


@dataclass
class LoraMatrices:
    """The matrices of n adapters for those parts of a Linear that any of them changes, zeros beyond an adapter's own
    rank."""

    a: Tensor  # [parts, n, rank, in]
    b: Tensor  # [n, rank, width of all these parts]
    columns: tuple[slice, ...]  # of each part in the Linear's result

    def __post_init__(self):
        tiles = list(_tiles(self.columns))
        # what all their columns are multiples of: loads of 8 numbers at once must know
        self.alignment = 8 if all(column % 8 == 0 for _, *columns in tiles for column in columns) else 1
        # [tiles, 4] int32: of each its part, its first column in b and in the result, how many it has
        self.tiles = torch.tensor(tiles, dtype=torch.int32, device=self.a.device)

    def parts(self) -> Iterator[tuple[Tensor, Tensor, slice]]:
        """Yields of each part a [n, rank, in], b [n, rank, width] and its columns in the result."""
        widths = [place.stop - place.start for place in self.columns]
        return zip(self.a, self.b.split(widths, 2), self.columns, strict=True)


def _tiles(columns: tuple[slice, ...]) -> Iterator[tuple[int, int, int, int]]:
    first = 0
    for part, place in enumerate(columns):
        for begin in range(place.start, place.stop, TILE):
            yield part, first + begin - place.start, begin, min(TILE, place.stop - begin)
        first += place.stop - place.start
