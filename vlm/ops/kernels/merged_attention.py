"""Flash-decoding over a row's own tokens and those of its encoder's output, as if they followed each other.

A program per (row, head of keys, split), as in `grouped_attention`: token n of the `own` that a row's window holds is
its sequence's, each one after them the encoder's.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.attention_variant import PLAIN, AttentionVariant
from vlm.ops.kernels import attention_variant, grouped_attention
from vlm.ops.kernels.dependent_launch import dependent, let_next_start, wait_for_inputs
from vlm.ops.kernels.device import num_stages
from vlm.ops.kernels.eight_bits import query_for_8_bits
from vlm.ops.kernels.grouped_attention import attend_tile, store_result
from vlm.ops.kernels.paged_attention import num_splits
from vlm.ops.kernels.paged_kv import kernel_scales, scale_stride
from vlm.ops.kernels.splits import share_of
from vlm.ops.layouts.paged_kv import MOST, PagedKV


@dependent
def _attend(
    q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, tables_ptr, cross_tables_ptr, slots_ptr, lengths_ptr,
    cross_lengths_ptr, out_ptr, acc_ptr, max_ptr, sum_ptr, arrivals_ptr,
    scale, q_row, q_head, block_stride, head_stride, scale_stride, table_stride, cross_table_stride,
    GROUP: tl.constexpr, G: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr,
    TILE: tl.constexpr, SPLITS: tl.constexpr, MOST: tl.constexpr, CAP: tl.constexpr, REACH: tl.constexpr,
):  # fmt: skip
    let_next_start()
    wait_for_inputs()
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    heads = tl.num_programs(1) * GROUP
    slot, length = tl.load(slots_ptr + row), tl.load(lengths_ptr + row)
    table, cross_table = tables_ptr + slot * table_stride, cross_tables_ptr + slot * cross_table_stride
    g, d = tl.arange(0, G), tl.arange(0, D)
    head = kv_head * GROUP + tl.minimum(g, GROUP - 1)  # those beyond are computed, too, and not stored
    q_at = (row * q_row + head * q_head)[:, None] + d[None, :]
    q = tl.load(q_ptr + q_at, mask=(d < DIM)[None, :], other=0.0)
    if MOST > 0:
        q, scale = query_for_8_bits(q, scale, q_ptr.dtype.element_ty)
    highest = tl.full([G], -float("inf"), tl.float32)
    total = tl.zeros([G], tl.float32)
    acc = tl.zeros([G, D], tl.float32)
    seen = 0  # the first token
    if REACH >= 0:
        seen = tl.maximum(length - 1 - REACH, 0)
    own = length - seen
    count = own + tl.load(cross_lengths_ptr + row)
    share = share_of(count, SPLITS, BLOCK)
    begin = split * share
    end = tl.minimum(begin + share, count)
    for start in range(begin, end, TILE):
        n = start + tl.arange(0, TILE)
        inside = n < end
        place = tl.where(n < own, seen + n, n - own)
        block = tl.load(table + place // BLOCK, mask=n < tl.minimum(own, end), other=0)
        block += tl.load(cross_table + place // BLOCK, mask=inside & (n >= own), other=0)
        highest, total, acc = attend_tile(
            highest, total, acc, q, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, block.to(tl.int64), place % BLOCK, inside,
            kv_head, d, scale, block_stride, head_stride, scale_stride, DIM, BLOCK, MOST, CAP,
        )  # fmt: skip
    store_result(
        highest, total, acc, out_ptr, acc_ptr, max_ptr, sum_ptr, arrivals_ptr, row, kv_head, split, heads, d, GROUP, G,
        DIM, D, PAD, SPLITS,
    )  # fmt: skip


def merged_attention(
    q: Tensor,
    kv: PagedKV,
    tables: tuple[Tensor, Tensor],
    slots: Tensor,
    lengths: tuple[Tensor, Tensor],
    scale: float,
    variant: AttentionVariant = PLAIN,
) -> Tensor:
    rows, heads, dim = q.shape
    kv_heads, block = kv.keys.shape[1:3]
    assert q.stride(2) == 1 and kv.arrivals is not None
    pad, group = triton.next_power_of_2(dim), heads // kv_heads
    splits = num_splits(q, kv, *tables)
    out = torch.empty((rows, heads, dim), dtype=q.dtype, device=q.device)
    stats = torch.empty((2, rows * heads * splits), dtype=torch.float32, device=q.device)
    acc = out if splits == 1 else torch.empty((rows * heads * splits, pad), dtype=torch.float32, device=q.device)
    _attend[(rows, kv_heads, splits)](
        q, kv.keys, kv.values, *kernel_scales(kv), *tables, slots, *lengths, out, acc, *stats, kv.arrivals,
        attention_variant.product_scale(scale, variant), q.stride(0), q.stride(1), *kv.keys.stride()[:2],
        scale_stride(kv), tables[0].stride(0), tables[1].stride(0),
        GROUP=group, G=max(16, triton.next_power_of_2(group)), DIM=dim, D=max(16, pad), PAD=pad, BLOCK=block,
        TILE=grouped_attention.TILE, SPLITS=splits, MOST=MOST[kv.keys.dtype] if kv.is_quantized else 0.0,
        num_warps=grouped_attention.num_warps(kv), num_stages=num_stages(pad, kv.keys.dtype),
        **attention_variant.constants(variant),
    )  # fmt: skip
    return out
