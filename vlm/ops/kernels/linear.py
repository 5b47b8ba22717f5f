"""Matrix-vector product for a batch of one row: each program streams a few whole rows of the weight.

The library's matrix kernels are tiled for many rows and reach a third of the memory bandwidth at one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _gemv(
    x_ptr, w_ptr, b_ptr, y_ptr, N, K,
    ROWS: tl.constexpr, TILE: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    acc = tl.zeros([ROWS, TILE], tl.float32)
    for start in range(0, K, TILE):
        k = start + tl.arange(0, TILE)
        inside = k < K
        x = tl.load(x_ptr + k, mask=inside, other=0.0).to(tl.float32)
        mask = (n < N)[:, None] & inside[None, :]
        w = tl.load(w_ptr + n[:, None].to(tl.int64) * K + k[None, :], mask=mask, other=0.0).to(tl.float32)
        acc += w * x[None, :]
    y = tl.sum(acc, 1)
    if BIAS:
        y += tl.load(b_ptr + n, mask=n < N, other=0.0).to(tl.float32)
    tl.store(y_ptr + n, y.to(y_ptr.dtype.element_ty), mask=n < N)


def shape_of(outputs: int, inputs: int) -> tuple[int, int, int]:
    """(weight rows a program, tile of the inputs, warps)"""
    return (2 if outputs <= 1024 else 4 if outputs <= 4096 else 8), min(triton.next_power_of_2(inputs), 1024), 4


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    outputs, inputs = weight.shape
    assert x.shape == (1, inputs) and x.is_contiguous() and weight.is_contiguous()
    y = torch.empty((1, outputs), dtype=x.dtype, device=x.device)
    rows, tile, warps = shape_of(outputs, inputs)
    _gemv[(triton.cdiv(outputs, rows),)](
        x, weight, weight if bias is None else bias, y, outputs, inputs,
        ROWS=rows, TILE=tile, BIAS=bias is not None, num_warps=warps,
    )  # fmt: skip
    return y
