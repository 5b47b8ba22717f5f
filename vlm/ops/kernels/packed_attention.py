"""Flash attention of packed sequences: a program per (tile of query rows, head).

Dao, FlashAttention-2 (arXiv:2307.08691). Products are the tensor cores', sums and the relative bias float32. Heads that
are little wider than a power of two are multiplied in two parts: one of 80 would be as one of 128 otherwise. Rows
of 16 bits have a kernel of their own on compute capability 9.0 (packed_flash.py).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.attention_variant import PLAIN, AttentionVariant
from vlm.ops.kernels import packed_flash
from vlm.ops.kernels.attention_variant import base_2_scores, constants, product_scale
from vlm.ops.kernels.device import num_stages, num_warps
from vlm.ops.kernels.jit import jit
from vlm.ops.kernels.load_heads import load_heads
from vlm.ops.layouts.tiles import TILE_ROWS

TILE_KEYS = 64  # no fewer than rows of a tile: every row sees a key of the first tile of them, whatever its window


@jit
def _loaded(x_ptr, x_row, rows, there, part, DIM: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr):
    """Returns a part of rows of heads, as load_heads does."""
    at = x_ptr + rows[:, None].to(tl.int64) * x_row + part[None, :]
    return load_heads(at, there, part, DIM, WIDTH, WHOLE)


@jit
def _attended(
    q, q_rest, highest, total, acc, acc_rest, k_ptr, v_ptr, bias_ptr, k_row, v_row, first, end, m, scale, MOST,
    DIM: tl.constexpr, D: tl.constexpr, REST: tl.constexpr, N: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr,
    REACH: tl.constexpr, AHEAD: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Returns the highest scores, the sums of weights and of values, those of N more keys included."""
    n, d, rest = first + tl.arange(0, N), tl.arange(0, D), D + tl.arange(0, REST)
    there = n < end
    k = _loaded(k_ptr, k_row, n, there, d, DIM, D, WHOLE)
    v = _loaded(v_ptr, v_row, n, there, d, DIM, D, WHOLE)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    if D < DIM:
        k_rest = _loaded(k_ptr, k_row, n, there, rest, DIM, D + REST, WHOLE)
        v_rest = _loaded(v_ptr, v_row, n, there, rest, DIM, D + REST, WHOLE)
        scores = tl.dot(q_rest, tl.trans(k_rest), scores, input_precision="ieee")
    if BIAS or CAP > 0:
        scores = base_2_scores(scores * scale, CAP)
        scale = 1.0
    distance = n[None, :] - m[:, None]
    if BIAS:
        scores += tl.load(bias_ptr + tl.minimum(tl.maximum(distance, -MOST), MOST) + MOST) * 1.4426950408889634
    if not WHOLE:
        scores = tl.where(there[None, :], scores, -float("inf"))
    if REACH >= 0:
        scores = tl.where((distance >= -REACH) & (distance <= AHEAD), scores, -float("inf"))
    new_highest = tl.maximum(highest, tl.max(scores, 1) * scale)  # pyright: ignore[reportOperatorIssue]
    shrink = tl.exp2(highest - new_highest)
    weights = tl.exp2(scores * scale - new_highest[:, None])
    total = total * shrink + tl.sum(weights, 1)
    weights = weights.to(v.dtype)
    acc = tl.dot(weights, v, acc * shrink[:, None], input_precision="ieee")
    if D < DIM:
        acc_rest = tl.dot(weights, v_rest, acc_rest * shrink[:, None], input_precision="ieee")
    return new_highest, total, acc, acc_rest


@jit
def _attend(
    q_ptr, k_ptr, v_ptr, tiles_ptr, bias_ptr, out_ptr, scale, q_row, k_row, v_row, MOST,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr, REST: tl.constexpr, M: tl.constexpr,
    N: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr, REACH: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    tile, head = tl.program_id(0), tl.program_id(1)
    start = tl.load(tiles_ptr + tile * 3)
    begin, end = tl.load(tiles_ptr + tile * 3 + 1), tl.load(tiles_ptr + tile * 3 + 2)
    m, d, rest = start + tl.arange(0, M), tl.arange(0, D), D + tl.arange(0, REST)
    q_ptr, out_ptr = q_ptr + head * DIM, out_ptr + head * DIM
    k_ptr, v_ptr = k_ptr + head // GROUP * DIM, v_ptr + head // GROUP * DIM
    bias_ptr += head * (2 * MOST + 1)
    q = _loaded(q_ptr, q_row, m, m < end, d, DIM, D, False)
    q_rest = _loaded(q_ptr, q_row, m, m < end, rest, DIM, D + REST, False)
    highest = tl.full([M], -float("inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc, acc_rest = tl.zeros([M, D], tl.float32), tl.zeros([M, REST], tl.float32)
    low, high = begin, end
    if REACH >= 0:
        low, high = tl.maximum(begin, start - REACH), tl.minimum(end, start + M + AHEAD)
    whole = low + (high - low) // N * N  # the key after the last tile of N
    for first in range(low, whole, N):
        highest, total, acc, acc_rest = _attended(
            q, q_rest, highest, total, acc, acc_rest, k_ptr, v_ptr, bias_ptr, k_row, v_row, first, end, m, scale, MOST,
            DIM, D, REST, N, BIAS, CAP, REACH, AHEAD, True,
        )  # fmt: skip
    if whole < high:
        highest, total, acc, acc_rest = _attended(
            q, q_rest, highest, total, acc, acc_rest, k_ptr, v_ptr, bias_ptr, k_row, v_row, whole, end, m, scale, MOST,
            DIM, D, REST, N, BIAS, CAP, REACH, AHEAD, False,
        )  # fmt: skip
    to = out_ptr + m[:, None].to(tl.int64) * (HEADS * DIM)
    asks = (m < end)[:, None]
    tl.store(to + d[None, :], (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=asks & (d < DIM)[None, :])
    if D < DIM:
        y = (acc_rest / total[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(to + rest[None, :], y, mask=asks & (rest < DIM)[None, :])


def parts_of(dim: int) -> tuple[int, int]:
    """Returns the widths that a head is multiplied in: a power of two, and one more where that leaves a small rest."""
    power = triton.next_power_of_2(dim)
    rest = dim - power // 2
    if power > dim and rest <= power // 4 and power >= 64:
        return power // 2, max(16, triton.next_power_of_2(rest))
    return max(16, power), 16


def packed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tiles: Tensor,
    scale: float,
    bias: Tensor | None,
    variant: AttentionVariant = PLAIN,
) -> Tensor:
    rows, heads, dim = q.shape
    assert all(x.stride(1) == dim and x.stride(2) == 1 for x in (q, k, v)), "heads of a row must be contiguous"
    assert bias is None or bias.is_contiguous()
    if packed_flash.fits(q, k, v, bias, variant):
        return packed_flash.attention(q, k, v, tiles, scale, bias)
    out = torch.empty((rows, heads, dim), dtype=q.dtype, device=q.device)
    width, rest = parts_of(dim)
    _attend[(len(tiles), heads)](
        q, k, v, tiles, tiles if bias is None else bias, out,
        product_scale(scale, variant), q.stride(0), k.stride(0), v.stride(0), 0 if bias is None else bias.shape[1] // 2,
        HEADS=heads, GROUP=heads // k.shape[1], DIM=dim, D=width, REST=rest, M=TILE_ROWS, N=TILE_KEYS,
        BIAS=bias is not None, AHEAD=-1 if variant.reach_ahead is None else variant.reach_ahead,
        num_warps=num_warps(q.dtype), num_stages=num_stages(dim, q.dtype), **constants(variant),
    )  # fmt: skip
    return out
