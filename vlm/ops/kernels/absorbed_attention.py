"""Attention over an encoder's hidden rows (compute capability 9.0): absorbed_attention.cu between two products a head,
absorbed_pair.cu where a program has no room for all heads.

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
from vlm.ops.kernels.nvrtc import LINE
from vlm.ops.layouts.paged_kv import HiddenRows
from vlm.ops.layouts.tiles import PROGRAM_HEADS

COLUMNS, WIDEST = 256, 1024  # of which the width is a multiple, up to this
STAGES = 4  # of a program, the first of which has the queries before
WARPS, TILE = 8, 16  # of a program; hidden rows of a stage
BOX_ROWS = 8  # of blocks, that are copied at once, at least
PAIR_HEADS, PAIR_COLUMNS = 32, 512  # at most, and likewise, where two programs have a row
PAIR_NARROWER = 8  # times narrower than its keys and values a row is then, at least: with less of it these are faster
PAIR_STAGES, PAIR_WARPS, INBOXES = 5, 8, 4
KEY_COLUMNS, KEY_ROWS = 128, 128  # of a program's product with keys' weights
VALUE_INPUTS, VALUE_ROWS = 128, 64  # of a step of, and of a program's product with values' weights
PAIR_VALUE_INPUTS, PAIR_VALUE_ROWS = 128, 32


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


def fits(heads: int, dim: int, width: int, dtype: torch.dtype, device: torch.device, *, block_size: int) -> bool:
    """Tells whether there is a kernel for so many heads over hidden rows of this width, so many of them a block."""
    powers = dim >= 16 and dim & dim - 1 == 0
    there = dtype in X_TYPES and nvrtc.copies_boxes(device) and powers and width <= WIDEST
    return there and block_size % BOX_ROWS == 0 and (fits_program(heads, width) or fits_pair(heads, dim, width))


def fits_program(heads: int, width: int) -> bool:
    """Tells whether a program has room for a row: absorbed_attention.cu."""
    return heads <= PROGRAM_HEADS and width % COLUMNS == 0


def fits_pair(heads: int, dim: int, width: int) -> bool:
    """Tells whether two programs have room for a row, and are faster than attention to keys and values:
    absorbed_pair.cu."""
    narrow = PAIR_NARROWER * width <= 2 * heads * dim
    return PROGRAM_HEADS < heads <= PAIR_HEADS and width % PAIR_COLUMNS == 0 and narrow


def absorbed_attention(q: Tensor, weight: Tensor, bias: Tensor | None, hidden: HiddenRows, scale: float) -> Tensor:
    (rows, heads, dim), width = q.shape, weight.shape[1]
    assert q.stride(2) == 1 and q.stride(1) == dim and weight.is_contiguous() and hidden.blocks.is_contiguous()
    queries, mixed = torch.empty((2, rows, heads, width), dtype=q.dtype, device=q.device)
    tile = triton.next_power_of_2(min(max(rows, 16), KEY_ROWS))
    _absorb_keys[(heads, width // KEY_COLUMNS, triton.cdiv(rows, tile))](
        q, weight, queries, rows, q.stride(0),
        HEADS=heads, D=dim, E=width, M=tile, N=KEY_COLUMNS, num_warps=8 if tile == KEY_ROWS else 4,
    )  # fmt: skip
    is_pair = heads > PROGRAM_HEADS
    attend = _attend_in_pairs if is_pair else _attend
    attend(queries, hidden, mixed, product_scale(scale, PLAIN))
    out = torch.empty((rows, heads, dim), dtype=q.dtype, device=q.device)
    several, inputs = (PAIR_VALUE_ROWS, PAIR_VALUE_INPUTS) if is_pair else (VALUE_ROWS, VALUE_INPUTS)
    _apply_values[(heads, triton.cdiv(rows, several))](
        mixed, weight, weight if bias is None else bias, out, rows,
        HEADS=heads, D=dim, E=width, M=several, K=inputs, BIAS=bias is not None, num_warps=4, num_stages=4,
    )  # fmt: skip
    return out


def _attend(queries: Tensor, hidden: HiddenRows, out: Tensor, scale: float) -> None:
    """Writes sums of hidden rows [R, H, E], weighed by queries [R, H, E]."""
    (rows, heads, width), block = queries.shape, hidden.blocks.shape[1]
    splits = num_splits(rows, num_processors(queries.device))
    constants = {
        "X_TYPE": X_TYPES[queries.dtype], "HEADS": heads, "WIDTH": width, "BLOCK": block, "STAGES": STAGES,
        "SPLITS": splits,
    }  # fmt: skip
    lines, box_rows = 2 * width // LINE, TILE if block % TILE == 0 else BOX_ROWS
    _kernel("absorbed_attention", tuple(constants.items()), shared_memory(width), queries.device).launch(
        (splits, rows, 1), 32 * WARPS,
        nvrtc.tensor_map(queries.view(-1, width), PROGRAM_HEADS, lines),
        nvrtc.tensor_map(hidden.blocks.view(-1, width), box_rows, lines),
        hidden.tables, hidden.slots, hidden.lengths, out, scale, hidden.tables.stride(0), cluster=splits,
    )  # fmt: skip


def _attend_in_pairs(queries: Tensor, hidden: HiddenRows, out: Tensor, scale: float) -> None:
    """Does so with two programs a row."""
    rows, heads, width = queries.shape
    constants = {
        "X_TYPE": X_TYPES[queries.dtype], "HEADS": heads, "WIDTH": width, "BLOCK": hidden.blocks.shape[1],
        "STAGES": PAIR_STAGES, "WARPS": PAIR_WARPS,
    }  # fmt: skip
    _kernel("absorbed_pair", tuple(constants.items()), pair_shared_memory(heads, width), queries.device).launch(
        (2, rows, 1), 32 * PAIR_WARPS, queries, *hidden, out, scale, hidden.tables.stride(0), cluster=2
    )


def shared_memory(width: int) -> int:
    """Returns the bytes of a program: tiles, which begin where 1,024 divides the address, all warps' products, weights
    and what they are of, a barrier a stage."""
    rows = PROGRAM_HEADS
    beside = 4 * WARPS * rows * (TILE + 8) + rows * (2 * TILE + 16) + 4 * rows + 8 * rows
    return 1024 + STAGES * (TILE * 2 * width + 8) + beside


def pair_shared_memory(heads: int, width: int) -> int:
    """Returns the bytes of one program of two: half the columns of tiles, all warps' products, what the other one has
    told, weights and what they are of, a barrier a stage and a place where it tells."""
    rows = triton.cdiv(heads, PROGRAM_HEADS) * PROGRAM_HEADS
    told = INBOXES * (4 * rows * TILE + 8)
    beside = 4 * PAIR_WARPS * rows * (TILE + 8) + told + rows * (2 * TILE + 16) + 4 * rows + 4 * rows
    return PAIR_STAGES * (TILE * (width + SLICE) + 8) + beside


@functools.cache
def _kernel(name: str, constants: tuple[tuple[str, int], ...], shared: int, device: torch.device) -> nvrtc.CudaKernel:
    return nvrtc.CudaKernel(f"{name}.cu", name, dict(constants), shared)
