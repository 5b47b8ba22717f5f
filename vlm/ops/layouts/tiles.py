"""How attention over packed rows, and over an encoder's hidden rows, is cut."""

from __future__ import annotations

TILE_ROWS = 64  # query rows a tile on CUDA; on the CPU a tile is a whole sequence or chunk
PROGRAM_HEADS = 16  # of a row over hidden rows, that a program has room for on CUDA
