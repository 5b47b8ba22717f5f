"""Matrix-vector product for a batch of one row: each program streams a few whole rows of the weight.

For weights that gemv.py does not take: heads of more than MOST_DENSE bytes (32,064 rows of 4,096 take 85.7 µs with
their norm, by that one 92.4, on an H100), float32's results of odd sizes, and GPUs without compute capability 9.0.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.activation import Activation
from vlm.ops.kernels import gemv
from vlm.ops.kernels.activation import constants, finished, outputs, store
from vlm.ops.kernels.dependent_launch import dependent, let_next_start, wait_for_inputs


@dependent
def _gemv(
    x_ptr, w_ptr, b_ptr, y_ptr, N, K,
    ROWS: tl.constexpr, TILE: tl.constexpr, BIAS: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    let_next_start()
    n, inside = outputs(tl.arange(0, ROWS), ROWS, N, GATED)
    k = tl.arange(0, TILE)
    row = w_ptr + n[:, None].to(tl.int64) * K + k[None, :]
    # on its way while x is not there yet; read once a step, it is to drive nothing else out of the cache
    w = tl.load(row, mask=inside[:, None] & (k < K)[None, :], other=0.0, eviction_policy="evict_first")
    wait_for_inputs()
    acc = tl.zeros([ROWS, TILE], tl.float32)
    for start in range(0, K, TILE):
        x = tl.load(x_ptr + start + k, mask=start + k < K, other=0.0).to(tl.float32)
        acc += w.to(tl.float32) * x[None, :]
        following = start + TILE
        there = inside[:, None] & (following + k < K)[None, :]
        w = tl.load(row + following, mask=there, other=0.0, eviction_policy="evict_first")
    y = tl.sum(acc, 1)[:, None]  # pyright: ignore[reportArgumentType]
    if BIAS:
        y += tl.load(b_ptr + n, mask=inside, other=0.0).to(tl.float32)[:, None]
    store(finished(y, ACT, GATED), y_ptr, 1, N // 2 if GATED else N)


ROWS = 2  # weight rows a program: measured best from 1,024 to 50,000 outputs


def shape_of(inputs: int) -> tuple[int, int]:
    """Returns (values of a row at once, warps) by a row's length: measured on an H200 from 1,024 to 11,008, where they
    come within 2 to 20% of the memory's bandwidth for the matrices of billions of parameters."""
    if inputs <= 1024:
        return triton.next_power_of_2(inputs), 1
    for tile, warps in ((4096, 4), (2048, 2)):
        if inputs == tile:
            return tile, warps
    # a last step that is mostly empty costs as much as a full one
    return (1024, 4) if -(-inputs // 1024) * 1024 <= 1.1 * inputs else (512, 2)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, activation: Activation | None = None
) -> Tensor:
    if gemv.fits(x, weight, None, None, activation):
        return gemv.linear(x, weight, None, None, bias, dtype, activation)
    num_outputs, inputs = weight.shape
    assert x.shape == (1, inputs) and x.is_contiguous() and weight.is_contiguous()
    width = num_outputs if activation is None else activation.width(num_outputs)
    y = torch.empty((1, width), dtype=dtype, device=x.device)
    tile, warps = shape_of(inputs)
    _gemv[(triton.cdiv(num_outputs, ROWS),)](
        x, weight, weight if bias is None else bias, y, num_outputs, inputs,
        ROWS=ROWS, TILE=tile, BIAS=bias is not None, num_warps=warps, **constants(activation),
    )  # fmt: skip
    return y
