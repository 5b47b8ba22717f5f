"""Rows times their own adapters' vectors, and others added, in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.dependent_launch import dependent, let_next_start, wait_for_inputs

TILE = 1024


@dependent
def _scaled(
    x_ptr,
    adapter_ids_ptr,
    scales_ptr,
    shifts_ptr,
    y_ptr,
    stride,
    width,
    base,
    TILE: tl.constexpr,
    SHIFTS: tl.constexpr,
):
    let_next_start()
    wait_for_inputs()
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = i < width
    number = tl.load(adapter_ids_ptr + row)
    slot = tl.where(number < 0, base, number).to(tl.int64)
    scales = tl.load(scales_ptr + slot * width + i, mask=mask, other=0.0)
    y = tl.load(x_ptr + row * stride + i, mask=mask, other=0.0).to(tl.float32) * scales
    if SHIFTS:
        y += tl.load(shifts_ptr + slot * width + i, mask=mask, other=0.0)
    tl.store(y_ptr + row * width + i, y.to(y_ptr.dtype.element_ty), mask=mask)


def scale_rows(x: Tensor, adapter_ids: Tensor, scales: Tensor, shifts: Tensor | None = None) -> Tensor:
    assert x.stride(1) == 1 and scales.is_contiguous() and (shifts is None or shifts.is_contiguous())
    rows, width = x.shape
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    grid, base = (rows, triton.cdiv(width, TILE)), len(scales) - 1
    has, added = shifts is not None, scales if shifts is None else shifts
    _scaled[grid](x, adapter_ids, scales, added, y, x.stride(0), width, base, TILE=TILE, SHIFTS=has, num_warps=4)
    return y
