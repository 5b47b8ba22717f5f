"""Flash attention of a prompt over the paged cache: a program per (tile of query rows, head).

Dao, FlashAttention-2 (arXiv:2307.08691). Products are the tensor cores', sums and the relative bias float32. Tiles of
keys that all of a tile's rows see need no mask.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.attention_variant import PLAIN, AttentionVariant
from vlm.ops.kernels.attention_variant import base_2_scores, constants, product_scale
from vlm.ops.kernels.device import num_stages
from vlm.ops.kernels.eight_bits import in_16_bits, query_for_8_bits, relative
from vlm.ops.kernels.jit import jit
from vlm.ops.kernels.paged_kv import kernel_scales, scale_stride
from vlm.ops.paged_kv import PagedKV
from vlm.ops.tiles import TILE_ROWS

TILE_KEYS = 64  # no fewer than rows of a tile: every row sees a key of the first tile of them, whatever its window


@jit
def _attend(
    q_ptr, keys_ptr, values_ptr, key_scales_ptr, value_scales_ptr, tables_ptr, tiles_ptr, bias_ptr, out_ptr,
    scale, q_row, block_stride, head_stride, scale_stride, table_stride, MOST,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BIAS: tl.constexpr, QUANTIZED: tl.constexpr, CAP: tl.constexpr,
    REACH: tl.constexpr,
):  # fmt: skip
    # the longest tiles first: they take the most time
    tile, head = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1)
    row, count = tl.load(tiles_ptr + tile * 4), tl.load(tiles_ptr + tile * 4 + 1)
    table = tables_ptr + tl.load(tiles_ptr + tile * 4 + 2) * table_stride
    position = tl.load(tiles_ptr + tile * 4 + 3)
    m = tl.arange(0, M)
    d = tl.arange(0, D)
    asks = (m < count)[:, None] & (d < DIM)[None, :]
    q_at = (row + m)[:, None].to(tl.int64) * q_row + head * DIM + d[None, :]
    q = tl.load(q_ptr + q_at, mask=asks, other=0.0)
    if QUANTIZED:
        q, scale = query_for_8_bits(q, scale, q_ptr.dtype.element_ty)
    here = position + m
    end = position + count
    inside = head // GROUP * head_stride
    highest = tl.full([M], -float("inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, D], tl.float32)
    low = 0
    if REACH >= 0:
        low = tl.maximum(position - REACH, 0)
    for first in range(low, end, N):
        n = first + tl.arange(0, N)
        block = tl.load(table + n // BLOCK, mask=n < end, other=0).to(tl.int64)
        at = (block * block_stride + inside + (n % BLOCK) * DIM)[:, None] + d[None, :]
        there = (n < end)[:, None] & (d < DIM)[None, :]
        k = tl.load(keys_ptr + at, mask=there, other=0.0)
        v = tl.load(values_ptr + at, mask=there, other=0.0)
        if QUANTIZED:
            scaled = block * scale_stride + head // GROUP * BLOCK + n % BLOCK
            # scaled as they lie: each thread has a few rows of them, and half the columns of the scores
            k_scales, k_peak = relative(tl.load(key_scales_ptr + scaled, mask=n < end, other=0.0))
            v_scales, v_peak = relative(tl.load(value_scales_ptr + scaled, mask=n < end, other=0.0))
            k = in_16_bits(k, q.dtype, PURE=False) * k_scales.to(q.dtype)[:, None]
            v = in_16_bits(v, q.dtype, PURE=False) * v_scales.to(q.dtype)[:, None]
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * k_peak)
        else:
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = base_2_scores(scores, CAP)
        if BIAS:
            far = n[None, :] - here[:, None]
            far = tl.minimum(tl.maximum(far, -MOST), MOST) + MOST
            scores += tl.load(bias_ptr + head * (2 * MOST + 1) + far) * 1.4426950408889634
        if first + N > position:
            scores = tl.where((n[None, :] <= here[:, None]) & (n < end)[None, :], scores, -float("inf"))
        if REACH >= 0:
            scores = tl.where(here[:, None] - n[None, :] <= REACH, scores, -float("inf"))
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        shrink = tl.exp2(highest - new_highest)
        weights = tl.exp2(scores - new_highest[:, None])
        total = total * shrink + tl.sum(weights, 1)
        acc *= shrink[:, None]
        if QUANTIZED:
            acc += tl.dot(weights.to(v.dtype), v, input_precision="ieee") * v_peak
        else:
            acc += tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        highest = new_highest
    out = out_ptr + (row + m)[:, None].to(tl.int64) * (HEADS * DIM) + head * DIM + d[None, :]
    tl.store(out, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=asks)


def prefill_attention(
    q: Tensor,
    kv: PagedKV,
    tables: Tensor,
    tiles: Tensor,
    scale: float,
    bias: Tensor | None,
    variant: AttentionVariant = PLAIN,
) -> Tensor:
    rows, heads, dim = q.shape
    assert q.stride(1) == dim and q.stride(2) == 1, "heads of a row must be contiguous"
    assert bias is None or bias.is_contiguous()
    out = torch.empty((rows, heads, dim), dtype=q.dtype, device=q.device)
    _attend[(len(tiles), heads)](
        q, kv.keys, kv.values, *kernel_scales(kv), tables, tiles, tiles if bias is None else bias, out,
        product_scale(scale, variant), q.stride(0), kv.keys.stride(0), kv.keys.stride(1), scale_stride(kv),
        tables.stride(0), 0 if bias is None else bias.shape[1] // 2,
        HEADS=heads, GROUP=heads // kv.keys.shape[1], DIM=dim, D=max(16, triton.next_power_of_2(dim)),
        BLOCK=kv.block_size, M=TILE_ROWS, N=TILE_KEYS, BIAS=bias is not None, QUANTIZED=kv.is_quantized, num_warps=4,
        num_stages=num_stages(dim, kv.keys.dtype), **constants(variant),
    )  # fmt: skip
    return out
