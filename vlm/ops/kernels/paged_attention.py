"""Flash-decoding over a paged cache: a program per (row, head, split of the context), the last of which merges.

Dao et al., Flash-Decoding (2023). The work is memory-bound at one query a row, so it runs on the vector units in
float32 and reads every key and value once. In a step each row's own token comes with it: the first split turns its key,
writes it and its value into the cache, and begins with them; no other program reads them there.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels import grouped_attention
from vlm.ops.kernels.dependent_launch import dependent, let_next_start, wait_for_inputs
from vlm.ops.kernels.new_token import head_values, new_token
from vlm.ops.kernels.paged_kv import kernel_scales, scale_stride
from vlm.ops.kernels.splits import is_last, merge
from vlm.ops.paged_kv import ARRIVALS, MOST, NewTokens, PagedKV

LOG2E = 1.4426950408889634
TILE, WARPS = 32, 1  # tokens a step of a program, and its warps: 93% of an H200's bandwidth at 128 rows


@dependent
def _attend(
    q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, new_k_ptr, new_v_ptr, angles_ptr, tables_ptr, slots_ptr, lengths_ptr,
    bias_ptr, out_ptr, acc_ptr, max_ptr, sum_ptr, arrivals_ptr,
    scale, q_row, q_head, k_row, v_row, block_stride, head_stride, scale_stride, table_stride, FAR,
    D: tl.constexpr, D_PAD: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
    SPLITS: tl.constexpr, BIAS: tl.constexpr, NEW: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    let_next_start()
    wait_for_inputs()
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    heads = tl.num_programs(1)
    length = tl.load(lengths_ptr + row)
    table = tables_ptr + tl.load(slots_ptr + row) * table_stride
    d = tl.arange(0, D_PAD)
    in_head = d < D
    angles = angles_ptr + row * 2 * HALF
    q = head_values(q_ptr + row * q_row + head * q_head, angles, d, D, HALF) * scale
    highest = -float("inf")
    total = 0.0
    acc = tl.zeros([D_PAD], tl.float32)
    cached = length
    if NEW:
        cached = length - 1
        is_writer = split == 0
        new_k, new_v = new_token(
            new_k_ptr + row * k_row + head * D, new_v_ptr + row * v_row + head * D, angles, d,
            k_ptr + head * head_stride, v_ptr + head * head_stride, k_scale_ptr + head * BLOCK,
            v_scale_ptr + head * BLOCK, table, cached, is_writer, block_stride, scale_stride, D, HALF, BLOCK, MOST,
        )  # fmt: skip
        score = tl.sum(new_k * q)
        if BIAS:
            score += tl.load(bias_ptr + head * (2 * FAR + 1) + FAR) * 1.4426950408889634
        highest = tl.where(is_writer, score, highest)
        total = tl.where(is_writer, 1.0, total)
        acc = tl.where(is_writer, new_v, acc)
    share = tl.cdiv(tl.cdiv(cached, SPLITS), TILE) * TILE
    begin = split * share
    end = tl.minimum(begin + share, cached)
    for start in range(begin, end, TILE):
        n = start + tl.arange(0, TILE)
        inside = n < end
        block = tl.load(table + n // BLOCK, mask=inside, other=0).to(tl.int64)
        at = (block * block_stride + head * head_stride + (n % BLOCK) * D)[:, None] + d[None, :]
        mask = inside[:, None] & in_head[None, :]
        k = tl.load(k_ptr + at, mask=mask, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + at, mask=mask, other=0.0).to(tl.float32)
        scores = tl.sum(k * q[None, :], 1)
        if MOST > 0:
            scaled = block * scale_stride + head * BLOCK + n % BLOCK
            scores *= tl.load(k_scale_ptr + scaled, mask=inside, other=0.0)
            v *= tl.load(v_scale_ptr + scaled, mask=inside, other=0.0)[:, None]
        if BIAS:
            far = tl.minimum(tl.maximum(n - (length - 1), -FAR), FAR) + FAR
            scores += tl.load(bias_ptr + head * (2 * FAR + 1) + far) * 1.4426950408889634
        scores = tl.where(inside, scores, -float("inf"))
        new_highest = tl.maximum(highest, tl.max(scores))
        shrink = tl.exp2(highest - new_highest)
        weights = tl.exp2(scores - new_highest)
        total = total * shrink + tl.sum(weights)
        acc = acc * shrink + tl.sum(weights[:, None] * v, 0)
        highest = new_highest
    pair = row * heads + head
    if SPLITS == 1:
        tl.store(out_ptr + pair * D + d, (acc / total).to(out_ptr.dtype.element_ty), mask=in_head)
    else:
        place = pair * SPLITS + split
        tl.store(acc_ptr + place * D_PAD + d, acc)
        tl.store(max_ptr + place, highest)
        tl.store(sum_ptr + place, total)
        if is_last(arrivals_ptr + pair, SPLITS):
            merge(acc_ptr, max_ptr, sum_ptr, out_ptr, pair, D, D_PAD, SPLITS)


@functools.cache
def _processors(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count


def num_splits(pairs: int, context: int, processors: int) -> int:
    """Returns a power of two that gives every multiprocessor eight programs, of one warp, with at least a tile of
    context each: on an H200 a token of 32 heads over 672 tokens takes 5.9 µs, with two programs each 8.1."""
    count = min(-(-8 * processors // pairs), max(1, context // TILE)) if pairs <= ARRIVALS else 1
    return 1 << (count.bit_length() - 1)


def paged_attention(
    q: Tensor,
    kv: PagedKV,
    tables: Tensor,
    slots: Tensor,
    lengths: Tensor,
    scale: float,
    bias: Tensor | None = None,
    new: NewTokens | None = None,
) -> Tensor:
    """Does what the operations `paged_attention` and, with `new`, `step_attention` say."""
    rows, heads, dim = q.shape
    kv_heads, block = kv.keys.shape[1:3]
    k, v, angles = (q, q, None) if new is None else new
    assert all(x.stride(2) == 1 for x in (q, k, v)) and (new is None or k.stride(1) == v.stride(1) == dim)
    assert kv.arrivals is not None and (angles is None or angles.is_contiguous())
    pad = triton.next_power_of_2(dim)
    splits = num_splits(rows * kv_heads, tables.shape[1] * block, _processors(q.device.index or 0))
    out = torch.empty((rows, heads, dim), dtype=q.dtype, device=q.device)
    stats = torch.empty((2, rows * heads * splits), dtype=torch.float32, device=q.device)
    acc = out if splits == 1 else torch.empty((rows * heads * splits, pad), dtype=torch.float32, device=q.device)
    inputs = (q, kv.keys, kv.values, *kernel_scales(kv), k, v, q if angles is None else angles, tables, slots, lengths)
    outputs = (out, acc, *stats, kv.arrivals, scale * LOG2E)
    strides = (q.stride(0), q.stride(1), k.stride(0), v.stride(0), *kv.keys.stride()[:2], scale_stride(kv))
    constants = {
        "HALF": 0 if angles is None else angles.shape[2], "BLOCK": block, "SPLITS": splits, "NEW": new is not None,
        "MOST": MOST[kv.keys.dtype] if kv.is_quantized else 0.0,
    }  # fmt: skip
    if kv_heads < heads:
        assert bias is None
        group = heads // kv_heads
        grouped_attention.attend[(rows, kv_heads, splits)](
            *inputs, *outputs, *strides, tables.stride(0),
            GROUP=group, G=max(16, triton.next_power_of_2(group)), DIM=dim, D=max(16, pad), PAD=pad,
            TILE=grouped_attention.TILE, num_warps=4, **constants,
        )  # fmt: skip
    else:
        _attend[(rows, heads, splits)](
            *inputs, lengths if bias is None else bias, *outputs, *strides, tables.stride(0),
            0 if bias is None else bias.shape[1] // 2,
            D=dim, D_PAD=pad, TILE=TILE, BIAS=bias is not None, num_warps=WARPS, **constants,
        )  # fmt: skip
    return out
