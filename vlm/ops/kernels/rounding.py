"""Rows rounded to 8 bits at the end of the kernel that makes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.jit import jit

TINY = tl.constexpr(float(torch.finfo(torch.float32).tiny))


@dataclass(frozen=True)
class Rounding:
    """Where rows [R, K] of 8 bits go, and their scales [R, 1] float32: all `static` [1], or each its own."""

    values: Tensor
    scale: Tensor
    static: Tensor | None
    least: float
    most: float


def pointers(rounding: Rounding | None, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns a kernel's arguments values_ptr, scale_ptr and static_ptr; `other` where there is nothing to point at."""
    if rounding is None:
        return other, other, other
    return rounding.values, rounding.scale, rounding.scale if rounding.static is None else rounding.static


def constants(rounding: Rounding | None) -> dict[str, Any]:
    """Returns what a kernel is told of the rounding that it ends with."""
    if rounding is None:
        return {"STATIC": False, "LEAST": 0.0, "MOST": 0.0}
    return {"STATIC": rounding.static is not None, "LEAST": rounding.least, "MOST": rounding.most}


@jit
def store_rounded(
    x, at, mask, row, is_row, values_ptr, scale_ptr, static_ptr,
    STATIC: tl.constexpr, LEAST: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """Stores rows x [ROWS, WIDTH] float32, zeros outside of the mask, as numbers of 8 bits, and their scales."""
    largest = tl.max(tl.abs(x), 1)
    if STATIC:
        scale = tl.zeros([x.shape[0]], tl.float32) + tl.load(static_ptr)
    else:
        scale = tl.maximum(largest, TINY * MOST) / MOST
    y = tl.div_rn(x, tl.broadcast_to(scale[:, None], x.shape))
    if values_ptr.dtype.element_ty == tl.int8:
        # what is added to a number below 2^22 rounds it to a whole one, halves to even ones
        y = (tl.minimum(tl.maximum(y, LEAST), MOST) + 12582912.0) - 12582912.0
    y = tl.minimum(tl.maximum(y, LEAST), MOST)
    tl.store(values_ptr + at, y.to(values_ptr.dtype.element_ty), mask=mask)
    tl.store(scale_ptr + row, scale, mask=is_row)
