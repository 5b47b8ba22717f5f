"""Flash attention of packed sequences: a program per (tile of query rows, head).

Dao, FlashAttention-2 (arXiv:2307.08691). Products are the tensor cores', sums and the relative bias float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.attention_variant import PLAIN, AttentionVariant
from vlm.ops.kernels.attention_variant import base_2_scores, constants, product_scale
from vlm.ops.kernels.device import num_stages
from vlm.ops.kernels.jit import jit
from vlm.ops.tiles import TILE_ROWS

TILE_KEYS = 64  # no fewer than rows of a tile: every row sees a key of the first tile of them, whatever its window


@jit
def _attend(
    q_ptr, k_ptr, v_ptr, tiles_ptr, bias_ptr, out_ptr, scale, q_row, k_row, v_row, MOST,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    BIAS: tl.constexpr, CAP: tl.constexpr, REACH: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    tile, head = tl.program_id(0), tl.program_id(1)
    start = tl.load(tiles_ptr + tile * 3)
    begin, end = tl.load(tiles_ptr + tile * 3 + 1), tl.load(tiles_ptr + tile * 3 + 2)
    m = start + tl.arange(0, M)
    d = tl.arange(0, D)
    asks = (m < end)[:, None] & (d < DIM)[None, :]
    head_at, kv_at = head * DIM + d[None, :], head // GROUP * DIM + d[None, :]
    q = tl.load(q_ptr + m[:, None].to(tl.int64) * q_row + head_at, mask=asks, other=0.0)
    highest = tl.full([M], -float("inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, D], tl.float32)
    low, high = begin, end
    if REACH >= 0:
        low, high = tl.maximum(begin, start - REACH), tl.minimum(end, start + M + AHEAD)
    for first in range(low, high, N):
        n = first + tl.arange(0, N)
        there = (n < end)[:, None] & (d < DIM)[None, :]
        k = tl.load(k_ptr + n[:, None].to(tl.int64) * k_row + kv_at, mask=there, other=0.0)
        v = tl.load(v_ptr + n[:, None].to(tl.int64) * v_row + kv_at, mask=there, other=0.0)
        scores = base_2_scores(tl.dot(q, tl.trans(k), input_precision="ieee") * scale, CAP)
        if BIAS:
            far = n[None, :] - m[:, None]
            far = tl.minimum(tl.maximum(far, -MOST), MOST) + MOST
            scores += tl.load(bias_ptr + head * (2 * MOST + 1) + far) * 1.4426950408889634
        scores = tl.where((n < end)[None, :], scores, -float("inf"))
        if REACH >= 0:
            distance = n[None, :] - m[:, None]
            scores = tl.where((distance >= -REACH) & (distance <= AHEAD), scores, -float("inf"))
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        shrink = tl.exp2(highest - new_highest)
        weights = tl.exp2(scores - new_highest[:, None])
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        highest = new_highest
    out = out_ptr + m[:, None].to(tl.int64) * (HEADS * DIM) + head_at
    tl.store(out, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=asks)


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
    out = torch.empty((rows, heads, dim), dtype=q.dtype, device=q.device)
    _attend[(len(tiles), heads)](
        q, k, v, tiles, tiles if bias is None else bias, out,
        product_scale(scale, variant), q.stride(0), k.stride(0), v.stride(0), 0 if bias is None else bias.shape[1] // 2,
        HEADS=heads, GROUP=heads // k.shape[1], DIM=dim, D=max(16, triton.next_power_of_2(dim)), M=TILE_ROWS,
        N=TILE_KEYS, BIAS=bias is not None, AHEAD=-1 if variant.reach_ahead is None else variant.reach_ahead,
        num_warps=4, num_stages=num_stages(dim, q.dtype), **constants(variant),
    )  # fmt: skip
    return out
