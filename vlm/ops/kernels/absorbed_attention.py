"""Attention over an encoder's hidden rows (compute capability 9.0): absorbed_attention.cu between two products a head.

The weights of the first one, and the first hidden rows, are requested while the kernels ahead of them end.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.attention_variant import PLAIN
from vlm.ops.kernels import nvrtc
from vlm.ops.kernels.attend import SLICE, X_TYPES
from vlm.ops.kernels.attention_variant import product_scale
from vlm.ops.kernels.dependent_launch import dependent, let_next_start, wait_for_inputs
from vlm.ops.kernels.device import num_processors
from vlm.ops.paged_kv import HiddenRows

MOST_HEADS, COLUMNS, WIDEST = 16, 256, 1024  # the tensor cores' rows; of which the width is a multiple, up to this
STAGES = 3  # of a program: with more of them no kernel ahead has room beside it
WARPS, TILE = 8, 16  # that multiply; hidden rows of a stage
KEY_COLUMNS, KEY_ROWS = 128, 128  # of a program's product with keys' weights
VALUE_INPUTS, VALUE_ROWS = 256, 16  # of a step of, and of a program's product with values' weights


@dependent
def _absorb_keys(
    q_ptr, weight_ptr, out_ptr, rows, q_row,
    HEADS: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Multiplies a head's queries [R, D] with the weights of its keys [D, E]."""
    let_next_start()
    head, d = tl.program_id(0), tl.arange(0, D)
    e, row = tl.program_id(1) * N + tl.arange(0, N), tl.program_id(2) * M + tl.arange(0, M)
    weight = tl.load(weight_ptr + (head * D + d)[:, None] * E + e[None, :])
    wait_for_inputs()
    there = (row < rows)[:, None]
    q = tl.load(q_ptr + row[:, None] * q_row + head * D + d[None, :], mask=there, other=0.0)
    y = tl.dot(q, weight)
    tl.store(out_ptr + (row[:, None] * HEADS + head) * E + e[None, :], y.to(out_ptr.dtype.element_ty), mask=there)


@dependent
def _apply_values(
    x_ptr, weight_ptr, bias_ptr, out_ptr, rows,
    HEADS: tl.constexpr, D: tl.constexpr, E: tl.constexpr, M: tl.constexpr, K: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Multiplies a head's sums of hidden rows [R, E] with the weights of its values [D, E]."""
    let_next_start()
    head, d = tl.program_id(0), tl.arange(0, D)
    row, k = tl.program_id(1) * M + tl.arange(0, M), tl.arange(0, K)
    there = (row < rows)[:, None]
    weight_at = weight_ptr + (HEADS * D + head * D + d)[None, :] * E + k[:, None]
    x_at = x_ptr + (row[:, None] * HEADS + head) * E + k[None, :]
    y = tl.zeros([M, D], tl.float32)
    wait_for_inputs()
    for e in range(0, E, K):
        y = tl.dot(tl.load(x_at + e, mask=there, other=0.0), tl.load(weight_at + e), y)
    if BIAS:
        y += tl.load(bias_ptr + HEADS * D + head * D + d).to(tl.float32)[None, :]
    tl.store(out_ptr + (row[:, None] * HEADS + head) * D + d[None, :], y.to(out_ptr.dtype.element_ty), mask=there)


def num_splits(rows: int, processors: int) -> int:
    """Returns how many programs share a row's context: few, as what they find are as many numbers as 32 hidden rows. As
    measured on an H200 with 16 to 256 rows of 588 tokens."""
    return 4 if 8 * rows <= processors else 2 if 2 * rows <= processors else 1


def fits(heads: int, dim: int, width: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Tells whether there is a kernel for so many heads over hidden rows of this width."""
    powers = dim >= 16 and dim & dim - 1 == 0
    there = dtype in X_TYPES and nvrtc.copies_boxes(device) and heads <= MOST_HEADS and powers
    return there and width % COLUMNS == 0 and width <= WIDEST


def absorbed_attention(q: Tensor, weight: Tensor, bias: Tensor | None, hidden: HiddenRows, scale: float) -> Tensor:
    (rows, heads, dim), width = q.shape, weight.shape[1]
    assert q.stride(2) == 1 and q.stride(1) == dim and weight.is_contiguous() and hidden.blocks.is_contiguous()
    queries, mixed = torch.empty((2, rows, heads, width), dtype=q.dtype, device=q.device)
    tile = triton.next_power_of_2(min(max(rows, 16), KEY_ROWS))
    _absorb_keys[(heads, width // KEY_COLUMNS, triton.cdiv(rows, tile))](
        q, weight, queries, rows, q.stride(0),
        HEADS=heads, D=dim, E=width, M=tile, N=KEY_COLUMNS, num_warps=8 if tile == KEY_ROWS else 4,
    )  # fmt: skip
    splits = num_splits(rows, num_processors(q.device))
    constants = {
        "X_TYPE": X_TYPES[q.dtype], "HEADS": heads, "WIDTH": width, "BLOCK": hidden.blocks.shape[1],
        "STAGES": STAGES, "SPLITS": splits,
    }  # fmt: skip
    _kernel(tuple(constants.items()), q.device).launch(
        (splits, rows, 1), 32 * (WARPS + 1), queries, *hidden, mixed, product_scale(scale, PLAIN),
        hidden.tables.stride(0), cluster=splits,
    )  # fmt: skip
    out = torch.empty((rows, heads, dim), dtype=q.dtype, device=q.device)
    _apply_values[(heads, triton.cdiv(rows, VALUE_ROWS))](
        mixed, weight, weight if bias is None else bias, out, rows,
        HEADS=heads, D=dim, E=width, M=VALUE_ROWS, K=VALUE_INPUTS, BIAS=bias is not None, num_warps=4, num_stages=4,
    )  # fmt: skip
    return out


def shared_memory(width: int) -> int:
    """Returns the bytes of a program: tiles, all warps' products, weights and what they are of, two barriers a
    stage."""
    rows = MOST_HEADS
    beside = 4 * WARPS * rows * (TILE + 8) + rows * (2 * TILE + 16) + 4 * rows + 8 * rows
    return STAGES * (TILE * (2 * width + SLICE) + 16) + beside


@functools.cache
def _kernel(constants: tuple[tuple[str, int], ...], device: torch.device) -> nvrtc.CudaKernel:
    values = dict(constants)
    return nvrtc.CudaKernel("absorbed_attention.cu", "absorbed_attention", values, shared_memory(values["WIDTH"]))
