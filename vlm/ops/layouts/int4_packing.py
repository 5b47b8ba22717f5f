"""How levels of 4 bits lie in bytes: so that kernels unpack whole runs of inputs with few instructions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

CHUNK = 128  # inputs whose levels lie together, or the largest power of two that divides the inputs


def chunk_of(inputs: int) -> int:
    """Returns of how many inputs the 4-bit levels lie together."""
    return math.gcd(inputs, CHUNK)


def packed4(levels: Tensor) -> Tensor:
    """Packs [N, K] uint8 below 16 -> [N, K / 2] uint8, two bytes of which are an int16: in a chunk of C inputs its
    number j has the levels of inputs j, C/4 + j, C/2 + j and 3C/4 + j, the first in the lowest bits."""
    quarters = levels.unflatten(1, (-1, 4, chunk_of(levels.shape[1]) // 4))  # [N, chunks, 4, C/4]
    low, high = (quarters[:, :, i] | (quarters[:, :, i + 1] << 4) for i in (0, 2))
    return torch.stack((low, high), 3).flatten(1)


def levels4(packed: Tensor) -> Tensor:
    """Returns the levels [N, K] uint8 of what `packed4` packed, [N, K / 2] uint8."""
    pairs = packed.unflatten(1, (-1, chunk_of(2 * packed.shape[1]) // 4, 2))  # [N, chunks, C/4, bytes]
    low, high = pairs.unbind(3)
    return torch.stack((low & 15, low >> 4, high & 15, high >> 4), 2).flatten(1)


def unpacked4(packed: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """Returns W [N, K] float32 of packed [N, K / 2] uint8, scale [N, groups] float32 and zero [N, groups] uint8; None:
    8 everywhere."""
    grouped = levels4(packed).unflatten(1, (scale.shape[1], -1)).float()
    return ((grouped - (8 if zero is None else zero.float()[..., None])) * scale[..., None]).flatten(1)
