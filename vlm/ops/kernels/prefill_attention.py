"""Flash attention of a prompt over the paged cache: a program per tile of query rows, and head or two.

Dao, FlashAttention-2 (arXiv:2307.08691). Products are the tensor cores', sums and the relative bias float32. Whole
tiles of keys that all of a tile's rows see have a loop of their own, in which nothing is masked; not in float32, whose
loops take a GPU's compiler long. Rows of 16 bits without a bias or a variant have a kernel of their own on compute
capability 9.0 (prefill_flash.py).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.attention_variant import PLAIN, AttentionVariant
from vlm.ops.kernels import prefill_flash
from vlm.ops.kernels.attention_variant import base_2_scores, constants, product_scale
from vlm.ops.kernels.device import num_stages, num_warps
from vlm.ops.kernels.eight_bits import in_16_bits, query_for_8_bits, relative
from vlm.ops.kernels.jit import jit
from vlm.ops.kernels.load_heads import load_heads
from vlm.ops.kernels.paged_kv import kernel_scales, scale_stride
from vlm.ops.layouts.paged_kv import PagedKV
from vlm.ops.layouts.tiles import TILE_ROWS

TILE_KEYS = 64


@jit
def _places(table, first, end, N: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    """Returns the blocks of N keys, int64, and their places there. The first key is the first of a block: where the N
    are whole blocks, each is looked up once."""
    if N % BLOCK == 0:
        b = tl.arange(0, N // BLOCK)
        entries = table + first // BLOCK + b
        block = tl.load(entries, mask=first + b * BLOCK < end, other=0) if MASKED else tl.load(entries)
        blocks = tl.broadcast_to(block[:, None], (N // BLOCK, BLOCK))
        places = tl.broadcast_to(tl.arange(0, BLOCK)[None, :], (N // BLOCK, BLOCK))
        return tl.reshape(blocks, (N,)).to(tl.int64), tl.reshape(places, (N,))
    else:
        n = first + tl.arange(0, N)
        return tl.load(table + n // BLOCK, mask=n < end, other=0).to(tl.int64), n % BLOCK


@jit
def _scaled(x, scales_at, there, dtype: tl.constexpr, MASKED: tl.constexpr):
    """Returns keys or values of 8 bits by their scales, divided by the highest of these, and that one."""
    # as they lie: each thread has a few rows of them, and half the columns of the scores
    scales, peak = relative(tl.load(scales_at, mask=there, other=0.0) if MASKED else tl.load(scales_at))
    return in_16_bits(x, dtype, PURE=False) * scales.to(dtype)[:, None], peak


@jit
def _attended(
    q, scale, highest, total, acc, unit, keys_ptr, values_ptr, key_scales_ptr, value_scales_ptr, table, bias_ptr,
    begin, stop, position, end, block_stride, scale_stride, MOST,
    DIM: tl.constexpr, BLOCK: tl.constexpr, N: tl.constexpr, BIAS: tl.constexpr, QUANTIZED: tl.constexpr,
    CAP: tl.constexpr, REACH: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Returns the highest scores [M, 1], the sums of weights [M, 1], those of values [M, D] divided by `unit`, and the
    unit, with the tiles of keys from `begin` up to `stop`; MASKED: some rows may not see some of these keys."""
    M: tl.constexpr = q.shape[0]
    D: tl.constexpr = q.shape[1]
    d, here = tl.arange(0, D), position + tl.arange(0, M) % TILE
    for first in range(begin, stop, N):
        n = first + tl.arange(0, N)
        there = n < end
        block, place = _places(table, first, end, N, BLOCK, MASKED)
        # what is the same for all tiles is added up first, and not in the loop
        inside, start = (place * DIM)[:, None] + d[None, :], (block * block_stride)[:, None]
        k = load_heads(keys_ptr + inside + start, there, d, DIM, D, not MASKED)
        v = load_heads(values_ptr + inside + start, there, d, DIM, D, not MASKED)
        by = scale
        if QUANTIZED:
            scaled = block * scale_stride + place
            k, k_peak = _scaled(k, key_scales_ptr + scaled, there, q.dtype, MASKED)
            v, v_peak = _scaled(v, value_scales_ptr + scaled, there, q.dtype, MASKED)
            by = scale * k_peak
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        if BIAS or CAP > 0 or MASKED:
            scores = base_2_scores(scores * by, CAP)
            by = 1.0
        if BIAS:
            far = tl.minimum(tl.maximum(n[None, :] - here[:, None], -MOST), MOST)
            scores += tl.load(bias_ptr + MOST + far) * 1.4426950408889634
        if MASKED and first + N > position:
            scores = tl.where(n[None, :] <= here[:, None], scores, -float("inf"))
        if MASKED and REACH >= 0:
            scores = tl.where(here[:, None] - n[None, :] <= REACH, scores, -float("inf"))
        highest_here = tl.max(scores, 1, keep_dims=True) * by  # pyright: ignore[reportOperatorIssue]
        new_highest = tl.maximum(highest, highest_here)
        shrink = tl.exp2(highest - new_highest)
        weights = tl.exp2(scores * by - new_highest)
        total = total * shrink + tl.sum(weights, 1, keep_dims=True)
        if QUANTIZED:
            shrink *= unit / v_peak
            unit = v_peak
        acc = tl.dot(weights.to(v.dtype), v, acc * shrink, input_precision="ieee")
        highest = new_highest
    return highest, total, acc, unit


@jit
def _attend(
    q_ptr, keys_ptr, values_ptr, key_scales_ptr, value_scales_ptr, tables_ptr, tiles_ptr, bias_ptr, out_ptr,
    scale, q_row, block_stride, head_stride, scale_stride, table_stride, MOST,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BIAS: tl.constexpr, QUANTIZED: tl.constexpr, CAP: tl.constexpr,
    REACH: tl.constexpr, TILE: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    # the longest tiles first: they take the most time
    tile, first_head = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1) * (M // TILE)
    row, count = tl.load(tiles_ptr + tile * 4), tl.load(tiles_ptr + tile * 4 + 1)
    table = tables_ptr + tl.load(tiles_ptr + tile * 4 + 2) * table_stride
    position = tl.load(tiles_ptr + tile * 4 + 3)
    # rows of the first head, then those of the next one, that has the same keys
    m, head = tl.arange(0, M) % TILE, first_head + tl.arange(0, M) // TILE
    d = tl.arange(0, D)
    asks = (m < count)[:, None] & (d < DIM)[None, :]
    q_at = ((row + m).to(tl.int64) * q_row + head * DIM)[:, None] + d[None, :]
    q = tl.load(q_ptr + q_at, mask=asks, other=0.0)
    if QUANTIZED:
        q, scale = query_for_8_bits(q, scale, q_ptr.dtype.element_ty)
    kv_head = first_head // GROUP
    keys_ptr, values_ptr = keys_ptr + kv_head * head_stride, values_ptr + kv_head * head_stride
    key_scales_ptr, value_scales_ptr = key_scales_ptr + kv_head * BLOCK, value_scales_ptr + kv_head * BLOCK
    bias_ptr += first_head * (2 * MOST + 1)
    # no infinity, of which differences are no numbers: a row may see no key of the first tile
    highest, total = tl.full([M, 1], -1e30, tl.float32), tl.zeros([M, 1], tl.float32)
    acc, unit = tl.zeros([M, D], tl.float32), 1.0
    end = position + count
    low = 0
    if REACH >= 0:
        low = tl.maximum(position - REACH, 0) // BLOCK * BLOCK
    if WHOLE:
        whole = low + (position + 1 - low) // N * N  # the key after the last tile that every row sees all of
        if REACH >= 0:
            near = low + tl.cdiv(tl.maximum(end - 1 - REACH - low, 0), N) * N  # the first tile in every row's window
            whole = tl.maximum(whole, near)
            highest, total, acc, unit = _attended(
                q, scale, highest, total, acc, unit, keys_ptr, values_ptr, key_scales_ptr, value_scales_ptr, table,
                bias_ptr, low, near, position, end, block_stride, scale_stride, MOST, DIM, BLOCK, N, BIAS, QUANTIZED,
                CAP, REACH, TILE, True,
            )  # fmt: skip
            low = near
        highest, total, acc, unit = _attended(
            q, scale, highest, total, acc, unit, keys_ptr, values_ptr, key_scales_ptr, value_scales_ptr, table,
            bias_ptr, low, whole, position, end, block_stride, scale_stride, MOST, DIM, BLOCK, N, BIAS, QUANTIZED, CAP,
            REACH, TILE, False,
        )  # fmt: skip
        low = whole
    highest, total, acc, unit = _attended(
        q, scale, highest, total, acc, unit, keys_ptr, values_ptr, key_scales_ptr, value_scales_ptr, table, bias_ptr,
        low, end, position, end, block_stride, scale_stride, MOST, DIM, BLOCK, N, BIAS, QUANTIZED, CAP, REACH, TILE,
        True,
    )  # fmt: skip
    if QUANTIZED:
        acc *= unit
    out = out_ptr + ((row + m).to(tl.int64) * (HEADS * DIM) + head * DIM)[:, None] + d[None, :]
    tl.store(out, (acc / total).to(out_ptr.dtype.element_ty), mask=asks)


class Shape(NamedTuple):
    """How a program works: heads of queries that share keys and values, tiles of keys, warps, Triton's stages, whether
    whole tiles have a loop of their own."""

    together: int
    keys: int
    warps: int
    stages: int
    whole: bool


TOGETHER = Shape(together=2, keys=128, warps=8, stages=3, whole=True)


def shape_of(q: Tensor, kv: PagedKV, bias: Tensor | None) -> Shape:
    """Returns the shape of programs for these rows. Of two heads that share keys of 8 bits these are unpacked once: an
    H200 takes 4.8 ms instead of 5.8 for 32 prompts of 2,700 tokens, but in 16 bits 3.0 instead of 2.8."""
    dim, dtype, is_float32 = kv.keys.shape[3], kv.keys.dtype, q.dtype is torch.float32
    are_pairs = (q.shape[1] // kv.keys.shape[1]) % 2 == 0 and bias is None
    if kv.is_quantized and are_pairs and dim <= 128 and not is_float32:
        return TOGETHER
    # Triton leaves half of the stages between loads and products to the blocks' numbers, that keys and values wait for:
    # with 3, a tile was copied no earlier than just ahead of its product
    stages = 2 * num_stages(dim, dtype) - 1
    return Shape(1, TILE_KEYS, num_warps(q.dtype), stages, whole=not (is_float32 and q.is_cuda))


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
    if prefill_flash.fits(q, kv, tiles, bias, variant):
        return prefill_flash.attention(q, kv, tables, tiles, scale)
    out = torch.empty((rows, heads, dim), dtype=q.dtype, device=q.device)
    shape = shape_of(q, kv, bias)
    _attend[(len(tiles), heads // shape.together)](
        q, kv.keys, kv.values, *kernel_scales(kv), tables, tiles, tiles if bias is None else bias, out,
        product_scale(scale, variant), q.stride(0), kv.keys.stride(0), kv.keys.stride(1), scale_stride(kv),
        tables.stride(0), 0 if bias is None else bias.shape[1] // 2,
        HEADS=heads, GROUP=heads // kv.keys.shape[1], DIM=dim, D=max(16, triton.next_power_of_2(dim)),
        BLOCK=kv.block_size, M=shape.together * TILE_ROWS, TILE=TILE_ROWS, N=shape.keys, BIAS=bias is not None,
        QUANTIZED=kv.is_quantized, WHOLE=shape.whole, num_warps=shape.warps, num_stages=shape.stages,
        **constants(variant),
    )  # fmt: skip
    return out
