"""Images as several squares of one size, each encoded for itself: the parts of a picture, and all of it in small."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vlm.config import VisionConfig
from vlm.limits import MAX_INPUT_SIDE


@dataclass(frozen=True)
class TiledVisionConfig(VisionConfig):
    """A network of squares ("tiles") of `tile_size` pixels a side, of which an image is one, or a grid of them.

    The pixel values of an image are [C, side, side], or for a grid of `down` by `across` [C, (down + 1) · side,
    across · side]: the tiles where they lie in the picture, and below them at the left the whole picture in small; what
    lies beside that is not read.
    """

    tile_size: int

    @property
    def tile_rows(self) -> int:
        """Feature rows of a tile."""
        raise NotImplementedError

    @property
    def num_features(self) -> int:
        return self.rows_of(*self.image_size)

    @property
    def min_rows(self) -> int:
        return self.tile_rows

    @property
    def fixed_size(self) -> bool:
        return False

    @property
    def network_size(self) -> tuple[int, int]:
        return self.tile_size, self.tile_size

    @property
    def network_rows(self) -> int:
        return self.tile_rows

    @property
    def usual_size(self) -> tuple[int, int]:
        """That of an upright page of A4, four tiles high as the published processors cut it."""
        return 5 * self.tile_size, 3 * self.tile_size

    @property
    def shapes(self) -> str:
        side = self.tile_size
        return (
            f"({self.num_channels}, {side}, {side}), or of an image that is cut into tiles of {side} × {side}"
            f" ({self.num_channels}, {side} · (rows + 1), {side} · columns)"
        )

    def takes(self, height: int, width: int) -> bool:
        side, (most, widest) = self.tile_size, self.image_size
        if height % side or width % side or not (side <= height <= most and side <= width <= widest):
            return False
        down, across = height // side - 1, width // side
        return down * across != 1 and (down > 0 or across == 1)

    def grid_of(self, height: int, width: int) -> tuple[int, int]:
        """Returns the tiles down and across; (0, 0) for an image that is not cut."""
        down = height // self.tile_size - 1
        return (down, width // self.tile_size) if down else (0, 0)

    def tiles_of(self, height: int, width: int) -> int:
        """Counts the squares of an image, the whole of it included."""
        down, across = self.grid_of(height, width)
        return down * across + 1

    def rows_of(self, height: int, width: int) -> int:
        return self.tiles_of(height, width) * self.tile_rows


def largest_size(side: int) -> tuple[int, int]:
    """Returns the (height, width) of the pixel values of the largest image in tiles."""
    most = -(-MAX_INPUT_SIDE // side)
    return (most + 1) * side, most * side


def join_tiles(tiles: Tensor, down: int, across: int) -> Tensor:
    """Lays tiles [n, C, side, side], row by row and the whole last, out as an image [C, H, W] of the same type; `down`
    0: there is the whole alone. Beside the whole it is repeated: levels and values stay the same image."""
    if not down:
        return tiles[0]
    count, channels, side, _ = tiles.shape
    parts = tiles[: count - 1].view(down, across, channels, side, side).permute(2, 0, 3, 1, 4)
    return torch.cat((parts.reshape(channels, down * side, across * side), tiles[-1].repeat(1, 1, across)), 1)


def cut_tiles(image: Tensor, side: int) -> list[Tensor]:
    """Returns the tiles [C, side, side] of an image [C, H, W] that was laid out so, row by row and the whole last."""
    *rows, last = image.split(side, 1)
    return [tile for row in rows for tile in row.split(side, 2)] + [last[:, :, :side]]
