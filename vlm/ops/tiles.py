"""How attention over packed rows is cut."""

from __future__ import annotations

TILE_ROWS = 64  # query rows a tile on CUDA; on the CPU a tile is a whole sequence or chunk
