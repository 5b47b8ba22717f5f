"""Rows with zeros behind them, in one pass over memory."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.jit import jit

TILE = 4096


@jit
def _widen(x_ptr, out_ptr, x_units, UNITS, UNIT: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr):
    # rows of units: so many values, which begin where they can be loaded at once
    row, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * TILE + tl.arange(0, TILE)
    x = tl.load(x_ptr + row * x_units * UNIT + i, mask=i < UNITS * UNIT, other=0.0)
    tl.store(out_ptr + row * WIDE + i, x, mask=i < WIDE)


def widened(x: Tensor, width: int) -> Tensor:
    """Returns the rows of x [R, K], which may be further apart, as [R, width], zeros behind them."""
    rows, values = x.shape
    assert x.stride(1) == 1
    out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    unit, tile = math.gcd(values, x.stride(0), 16), min(TILE, triton.next_power_of_2(width))
    _widen[(rows, triton.cdiv(width, tile))](
        x, out, x.stride(0) // unit, values // unit, UNIT=unit, WIDE=width, TILE=tile, num_warps=max(1, tile // 512),
    )  # fmt: skip
    return out
