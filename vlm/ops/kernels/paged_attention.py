"""Flash-decoding over a paged cache: a program per (row, head, split of the context), then a merge of the splits.

Dao et al., Flash-Decoding (2023). The work is memory-bound at one query a row, so it runs on the vector units in
float32 and reads every key and value once.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels import grouped_attention
from vlm.ops.kernels.dependent_launch import dependent, let_next_start, wait_for_inputs
from vlm.ops.kernels.paged_kv import kernel_scales, scale_stride
from vlm.ops.paged_kv import PagedKV

LOG2E = 1.4426950408889634
TILE, WARPS = 32, 1  # tokens a step of a program, and its warps: 93% of an H200's bandwidth at 128 rows


@dependent
def _attend(
    q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, tables_ptr, slots_ptr, lengths_ptr, bias_ptr, out_ptr, max_ptr,
    sum_ptr, scale, q_row, q_head, block_stride, head_stride, scale_stride, table_stride, MOST,
    D: tl.constexpr, D_PAD: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr,
    BIAS: tl.constexpr, QUANTIZED: tl.constexpr,
):  # fmt: skip
    let_next_start()
    wait_for_inputs()
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    heads = tl.num_programs(1)
    length = tl.load(lengths_ptr + row)
    table = tables_ptr + tl.load(slots_ptr + row) * table_stride
    share = tl.cdiv(tl.cdiv(length, SPLITS), TILE) * TILE
    begin = split * share
    end = tl.minimum(begin + share, length)
    d = tl.arange(0, D_PAD)
    in_head = d < D
    q = tl.load(q_ptr + row * q_row + head * q_head + d, mask=in_head, other=0.0).to(tl.float32) * scale
    highest = -float("inf")
    total = 0.0
    acc = tl.zeros([D_PAD], tl.float32)
    for start in range(begin, end, TILE):
        n = start + tl.arange(0, TILE)
        inside = n < end
        block = tl.load(table + n // BLOCK, mask=inside, other=0).to(tl.int64)
        at = (block * block_stride + head * head_stride + (n % BLOCK) * D)[:, None] + d[None, :]
        mask = inside[:, None] & in_head[None, :]
        k = tl.load(k_ptr + at, mask=mask, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + at, mask=mask, other=0.0).to(tl.float32)
        scores = tl.sum(k * q[None, :], 1)
        if QUANTIZED:
            scaled = block * scale_stride + head * BLOCK + n % BLOCK
            scores *= tl.load(k_scale_ptr + scaled, mask=inside, other=0.0)
            v *= tl.load(v_scale_ptr + scaled, mask=inside, other=0.0)[:, None]
        if BIAS:
            far = tl.minimum(tl.maximum(n - (length - 1), -MOST), MOST) + MOST
            scores += tl.load(bias_ptr + head * (2 * MOST + 1) + far) * 1.4426950408889634
        scores = tl.where(inside, scores, -float("inf"))
        new_highest = tl.maximum(highest, tl.max(scores))
        shrink = tl.exp2(highest - new_highest)
        weights = tl.exp2(scores - new_highest)
        total = total * shrink + tl.sum(weights)
        acc = acc * shrink + tl.sum(weights[:, None] * v, 0)
        highest = new_highest
    place = (row * heads + head) * SPLITS + split
    if SPLITS == 1:
        tl.store(out_ptr + place * D + d, (acc / total).to(out_ptr.dtype.element_ty), mask=in_head)
    else:
        tl.store(out_ptr + place * D_PAD + d, acc)
        tl.store(max_ptr + place, highest)
        tl.store(sum_ptr + place, total)


@dependent
def _merge(
    acc_ptr, max_ptr, sum_ptr, out_ptr, D: tl.constexpr, D_PAD: tl.constexpr, SPLITS: tl.constexpr
):  # fmt: skip
    let_next_start()
    wait_for_inputs()
    pair = tl.program_id(0)  # row * heads + head
    s, d = tl.arange(0, SPLITS), tl.arange(0, D_PAD)
    highest = tl.load(max_ptr + pair * SPLITS + s)
    # a split beyond the context has maximum -inf, hence weight 0
    weight = tl.exp2(highest - tl.max(highest))
    acc = tl.load(acc_ptr + (pair * SPLITS + s)[:, None] * D_PAD + d[None, :])
    total = tl.sum(tl.load(sum_ptr + pair * SPLITS + s) * weight)
    out = tl.sum(acc * weight[:, None], 0) / total  # pyright: ignore[reportOperatorIssue]
    tl.store(out_ptr + pair * D + d, out.to(out_ptr.dtype.element_ty), mask=d < D)


@functools.cache
def _processors(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count


def num_splits(pairs: int, context: int, processors: int) -> int:
    """Returns a power of two that gives every multiprocessor eight programs, of one warp, with at least a tile of
    context each: on an H200 a token of 32 heads over 672 tokens takes 5.9 µs, with two programs each 8.1."""
    count = min(-(-8 * processors // pairs), max(1, context // TILE))
    return 1 << (count.bit_length() - 1)


def paged_attention(
    q: Tensor,
    kv: PagedKV,
    tables: Tensor,
    slots: Tensor,
    lengths: Tensor,
    scale: float,
    bias: Tensor | None = None,
) -> Tensor:
    rows, heads, dim = q.shape
    kv_heads, block = kv.keys.shape[1:3]
    pad = triton.next_power_of_2(dim)
    splits = num_splits(rows * kv_heads, tables.shape[1] * block, _processors(q.device.index or 0))
    out = torch.empty((rows, heads, dim), dtype=q.dtype, device=q.device)
    stats = torch.empty((2, rows * heads * splits), dtype=torch.float32, device=q.device)
    acc = out if splits == 1 else torch.empty((rows * heads * splits, pad), dtype=torch.float32, device=q.device)
    cached = (kv.keys, kv.values, *kernel_scales(kv))
    strides = (q.stride(0), q.stride(1), kv.keys.stride(0), kv.keys.stride(1), scale_stride(kv), tables.stride(0))
    if kv_heads < heads:
        assert bias is None
        group = heads // kv_heads
        grouped_attention.attend[(rows, kv_heads, splits)](
            q, *cached, tables, slots, lengths, acc, stats[0], stats[1], scale * LOG2E, *strides,
            GROUP=group, G=max(16, triton.next_power_of_2(group)), DIM=dim, D=max(16, pad), PAD=pad, BLOCK=block,
            TILE=grouped_attention.TILE, SPLITS=splits, QUANTIZED=kv.is_quantized, num_warps=4,
        )  # fmt: skip
    else:
        _attend[(rows, heads, splits)](
            q, *cached, tables, slots, lengths, lengths if bias is None else bias, acc, stats[0], stats[1],
            scale * LOG2E, *strides, 0 if bias is None else bias.shape[1] // 2,
            D=dim, D_PAD=pad, BLOCK=block, TILE=TILE, SPLITS=splits, BIAS=bias is not None, QUANTIZED=kv.is_quantized,
            num_warps=WARPS,
        )  # fmt: skip
    if splits > 1:
        _merge[(rows * heads,)](acc, stats[0], stats[1], out, D=dim, D_PAD=pad, SPLITS=splits, num_warps=1)
    return out
