"""Flash-decoding over a paged cache: a program per (row, head, split of the context), the last of which merges.

Dao et al., Flash-Decoding (2023). The work is memory-bound at one query a row, so it runs on the vector units in
float32 and reads every key and value once. In a step each row's own token comes with it: the first split turns its key,
writes it and its value into the cache, and begins with them; no other program reads them there.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.attention_variant import PLAIN, AttentionVariant
from vlm.ops.kernels import attend, attend_group, attention_variant, grouped_attention
from vlm.ops.kernels.attention_variant import base_2_scores
from vlm.ops.kernels.dependent_launch import dependent, let_next_start, wait_for_inputs
from vlm.ops.kernels.device import device_properties, num_stages
from vlm.ops.kernels.jit import jit
from vlm.ops.kernels.new_token import head_values, new_token
from vlm.ops.kernels.paged_kv import kernel_scales, scale_stride
from vlm.ops.kernels.splits import is_last, merge, share_of
from vlm.ops.layouts.paged_kv import ARRIVALS, MOST, NewTokens, PagedKV

TILE, LONG_TILE = 32, 64  # tokens a step of a program of one warp, and of heads of more values than SHORT, up to LONG
SHORT, LONG = 64, 128
SPLIT_TILE, SPLIT_WARPS = 128, 4  # the same where the context is split: one step where it is short
LONG_SPLIT_TILE, LONG_SPLIT_WARPS = 32, 1  # and of heads of more values


@jit
def _load_tile(
    k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, table, n, end, d, head, block_stride, head_stride, scale_stride,
    D: tl.constexpr, BLOCK: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """Requests the keys and values [TILE, D_PAD] of tokens n, and their scales [TILE] where they have some."""
    inside = n < end
    block = tl.load(table + n // BLOCK, mask=inside, other=0).to(tl.int64)
    at = (block * block_stride + head * head_stride + (n % BLOCK) * D)[:, None] + d[None, :]
    mask = inside[:, None] & (d < D)[None, :]
    k, v = tl.load(k_ptr + at, mask=mask, other=0.0), tl.load(v_ptr + at, mask=mask, other=0.0)
    if MOST > 0:
        scaled = block * scale_stride + head * BLOCK + n % BLOCK
        k_scale = tl.load(k_scale_ptr + scaled, mask=inside, other=0.0)
        return k, v, k_scale, tl.load(v_scale_ptr + scaled, mask=inside, other=0.0)
    else:
        return k, v, 1.0, 1.0


@dependent
def _attend(
    q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, new_k_ptr, new_v_ptr, angles_ptr, tables_ptr, slots_ptr, lengths_ptr,
    bias_ptr, out_ptr, acc_ptr, max_ptr, sum_ptr, arrivals_ptr,
    scale, q_row, q_head, k_row, v_row, block_stride, head_stride, scale_stride, table_stride, FAR,
    D: tl.constexpr, D_PAD: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
    SPLITS: tl.constexpr, BIAS: tl.constexpr, NEW: tl.constexpr, MOST: tl.constexpr, CAP: tl.constexpr,
    REACH: tl.constexpr,
):  # fmt: skip
    # what a step finds in the cache, its lengths and tables: who writes these lets no kernel start before it ends
    let_next_start()
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    heads = tl.num_programs(1)
    length = tl.load(lengths_ptr + row)
    table = tables_ptr + tl.load(slots_ptr + row) * table_stride
    cached = length - 1 if NEW else length
    seen = 0  # the first token
    if REACH >= 0:
        seen = tl.maximum(length - 1 - REACH, 0)
    share = share_of(cached - seen, SPLITS, BLOCK)
    begin = seen + split * share
    end = tl.minimum(begin + share, cached)
    d, n = tl.arange(0, D_PAD), begin + tl.arange(0, TILE)
    if SPLITS > 1:
        k, v, k_scale, v_scale = _load_tile(
            k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, table, n, end, d, head, block_stride, head_stride, scale_stride, D,
            BLOCK, MOST,
        )  # fmt: skip
    wait_for_inputs()
    angles = angles_ptr + row * 2 * HALF
    q = head_values(q_ptr + row * q_row + head * q_head, angles, d, D, HALF) * scale
    highest = -float("inf")
    total = 0.0
    acc = tl.zeros([D_PAD], tl.float32)
    if NEW:
        is_writer = split == 0
        new_k, new_v = new_token(
            new_k_ptr + row * k_row + head * D, new_v_ptr + row * v_row + head * D, angles, d,
            k_ptr + head * head_stride, v_ptr + head * head_stride, k_scale_ptr + head * BLOCK,
            v_scale_ptr + head * BLOCK, table, cached, is_writer, block_stride, scale_stride, D, HALF, BLOCK, MOST,
        )  # fmt: skip
        score = base_2_scores(tl.sum(new_k * q), CAP)
        if BIAS:
            score += tl.load(bias_ptr + head * (2 * FAR + 1) + FAR) * 1.4426950408889634
        highest = tl.where(is_writer, score, highest)
        total = tl.where(is_writer, 1.0, total)
        acc = tl.where(is_writer, new_v, acc)
    for start in range(begin, end, TILE):
        if SPLITS == 1:
            n = start + tl.arange(0, TILE)
            k, v, k_scale, v_scale = _load_tile(
                k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, table, n, end, d, head, block_stride, head_stride, scale_stride,
                D, BLOCK, MOST,
            )  # fmt: skip
        inside = n < end
        scores = base_2_scores(tl.sum(k.to(tl.float32) * q[None, :], 1) * k_scale, CAP)
        if BIAS:
            far = tl.minimum(tl.maximum(n - (length - 1), -FAR), FAR) + FAR
            scores += tl.load(bias_ptr + head * (2 * FAR + 1) + far) * 1.4426950408889634
        scores = tl.where(inside, scores, -float("inf"))
        new_highest = tl.maximum(highest, tl.max(scores))
        shrink = tl.exp2(highest - new_highest)
        weights = tl.exp2(scores - new_highest)
        total = total * shrink + tl.sum(weights)
        acc = acc * shrink + tl.sum((weights * v_scale)[:, None] * v.to(tl.float32), 0)
        highest = new_highest
        if SPLITS > 1:
            n = start + TILE + tl.arange(0, TILE)
            k, v, k_scale, v_scale = _load_tile(
                k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, table, n, end, d, head, block_stride, head_stride, scale_stride,
                D, BLOCK, MOST,
            )  # fmt: skip
    pair = row * heads + head
    if SPLITS == 1:
        tl.store(out_ptr + pair * D + d, (acc / total).to(out_ptr.dtype.element_ty), mask=d < D)
    else:
        place = pair * SPLITS + split
        tl.store(acc_ptr + place * D_PAD + d, acc)
        tl.store(max_ptr + place, highest)
        tl.store(sum_ptr + place, total)
        if is_last(arrivals_ptr + pair, SPLITS):
            merge(acc_ptr, max_ptr, sum_ptr, out_ptr, pair, D, D_PAD, SPLITS)


def writes_too(q: Tensor, kv: PagedKV, tables: Tensor, new: NewTokens) -> bool:
    """Tells whether one kernel writes the new tokens and attends to them: where the context is split."""
    return attend.fits(q, kv, new) or attend_group.fits(q, kv, new) or num_splits(q, kv, tables) > 1


def num_splits(q: Tensor, kv: PagedKV, *tables: Tensor) -> int:
    """Returns into how many parts the context is split, a power of two: that gives every multiprocessor four programs
    of four warps, or one to every tile. A multiprocessor holds five of groups: it gets at most four; and eight of one
    warp, as measured on an H100 with 8 to 32 rows of 672 tokens. Splits of e4m3 that cannot meet in a cluster take
    twice to four times as long as whole contexts there."""
    kv_heads, block = kv.keys.shape[1:3]
    pairs, processors = len(q) * kv_heads, device_properties(q.device.index).multi_processor_count
    is_grouped, dtype = kv_heads < q.shape[1], kv.keys.dtype
    if pairs > ARRIVALS or (not is_grouped and dtype == torch.float8_e4m3fn and pairs > processors):
        return 1
    tile, warps = _split_tile(q, kv)
    tiles = triton.cdiv(sum(table.shape[1] for table in tables) * block, tile)
    programs = 8 if warps == 1 and dtype == q.dtype else 4
    wanted = min(triton.cdiv(programs * processors, pairs), tiles)
    return 1 << wanted.bit_length() - 1 if is_grouped or warps == 1 else triton.next_power_of_2(wanted)


def _split_tile(q: Tensor, kv: PagedKV) -> tuple[int, int]:
    """Returns the tokens of a step, and the warps, of a program that has a part of a context."""
    if kv.keys.shape[1] < q.shape[1]:
        return grouped_attention.TILE, SPLIT_WARPS
    return (LONG_SPLIT_TILE, LONG_SPLIT_WARPS) if SHORT < kv.keys.shape[3] <= LONG else (SPLIT_TILE, SPLIT_WARPS)


def whole_tile(kv: PagedKV) -> tuple[int, int]:
    """Returns the tokens of a step, and the warps, of a program that has a whole context: at 32 rows of 672 tokens an
    H200 reads 3.8 TB/s of float16, 3.0 of e4m3 and 2.4 of int8, whose values take more to unpack."""
    if not SHORT < kv.keys.shape[3] <= LONG:  # a warp has no registers for more
        return TILE, 1
    return LONG_TILE, 2 if kv.keys.dtype == torch.int8 else 1


def paged_attention(
    q: Tensor,
    kv: PagedKV,
    tables: Tensor,
    slots: Tensor,
    lengths: Tensor,
    scale: float,
    bias: Tensor | None = None,
    variant: AttentionVariant = PLAIN,
    new: NewTokens | None = None,
) -> Tensor:
    """Does what the operations `paged_attention` and, with `new`, `step_attention` say."""
    by_group = attend_group.fits(q, kv, new)
    if attend.fits(q, kv, new) and not (by_group and attend_group.is_faster(q, kv, tables)):
        return attend.attention(q, kv, tables, slots, lengths, scale, bias, variant, new)
    if by_group:
        return attend_group.attention(q, kv, tables, slots, lengths, scale, bias, variant, new)
    rows, heads, dim = q.shape
    kv_heads, block = kv.keys.shape[1:3]
    k, v, angles = (q, q, None) if new is None else (new.k, new.v, new.angles)
    assert all(x.stride(2) == 1 for x in (q, k, v)) and (new is None or k.stride(1) == v.stride(1) == dim)
    assert kv.arrivals is not None and (angles is None or angles.is_contiguous())
    pad = triton.next_power_of_2(dim)
    splits = num_splits(q, kv, tables)
    out = torch.empty((rows, heads, dim), dtype=q.dtype, device=q.device)
    stats = torch.empty((2, rows * heads * splits), dtype=torch.float32, device=q.device)
    acc = out if splits == 1 else torch.empty((rows * heads * splits, pad), dtype=torch.float32, device=q.device)
    inputs = (q, kv.keys, kv.values, *kernel_scales(kv), k, v, q if angles is None else angles, tables, slots, lengths)
    outputs = (out, acc, *stats, kv.arrivals, attention_variant.product_scale(scale, variant))
    strides = (q.stride(0), q.stride(1), k.stride(0), v.stride(0), *kv.keys.stride()[:2], scale_stride(kv))
    constants = {
        "HALF": 0 if angles is None else angles.shape[2], "BLOCK": block, "SPLITS": splits, "NEW": new is not None,
        "MOST": MOST[kv.keys.dtype] if kv.is_quantized else 0.0, **attention_variant.constants(variant),
    }  # fmt: skip
    if kv_heads < heads:
        assert bias is None
        group = heads // kv_heads
        grouped_attention.attend[(rows, kv_heads, splits)](
            *inputs, *outputs, *strides, tables.stride(0),
            GROUP=group, G=max(16, triton.next_power_of_2(group)), DIM=dim, D=max(16, pad), PAD=pad,
            TILE=grouped_attention.TILE, num_warps=grouped_attention.num_warps(kv),
            num_stages=num_stages(pad, kv.keys.dtype), **constants,
        )  # fmt: skip
    else:
        tile, warps = whole_tile(kv) if splits == 1 else _split_tile(q, kv)
        _attend[(rows, heads, splits)](
            *inputs, lengths if bias is None else bias, *outputs, *strides, tables.stride(0),
            0 if bias is None else bias.shape[1] // 2,
            D=dim, D_PAD=pad, TILE=tile, BIAS=bias is not None, num_warps=warps, **constants,
        )  # fmt: skip
    return out
