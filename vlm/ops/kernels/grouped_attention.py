"""Flash-decoding where several query heads share a head of keys and values: a program per (row, head of keys, split).

A group's queries are the rows of a matrix, so every key and value is read once for all of them; its products are the
tensor cores'.
"""

from __future__ import annotations

import triton.language as tl

from vlm.ops.kernels.attention_variant import base_2_scores
from vlm.ops.kernels.dependent_launch import dependent, let_next_start, wait_for_inputs
from vlm.ops.kernels.eight_bits import in_16_bits, query_for_8_bits, relative
from vlm.ops.kernels.jit import jit
from vlm.ops.kernels.new_token import head_values, new_token
from vlm.ops.kernels.splits import is_last, merge_group, share_of
from vlm.ops.layouts.paged_kv import PagedKV

TILE = 64  # tokens a step of a program


def num_warps(kv: PagedKV) -> int:
    """Returns how many warps a program has: two where values of 8 bits are unpacked, of which four take 1.6 times as
    many instructions for a tile."""
    return 2 if kv.is_quantized else 4


@jit
def attend_tile(
    highest, total, acc, q, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, block, place, inside, kv_head, d, scale,
    block_stride, head_stride, scale_stride,
    DIM: tl.constexpr, BLOCK: tl.constexpr, MOST: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """Returns highest scores [G], their sums [G] and values by weight [G, D] with those of one more tile of tokens, at
    these places [TILE] of blocks [TILE]."""
    at = (block * block_stride + kv_head * head_stride + place * DIM)[:, None] + d[None, :]
    mask = inside[:, None] & (d < DIM)[None, :]
    k = tl.load(k_ptr + at, mask=mask, other=0.0)
    v = tl.load(v_ptr + at, mask=mask, other=0.0)
    if MOST > 0:
        scaled = block * scale_stride + kv_head * BLOCK + place
        k, v = in_16_bits(k, q.dtype, PURE=True), in_16_bits(v, q.dtype, PURE=False)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    if MOST > 0:
        scores *= tl.load(k_scale_ptr + scaled, mask=inside, other=0.0)[None, :]
    scores = base_2_scores(scores, CAP)
    scores = tl.where(inside[None, :], scores, -float("inf"))
    new_highest = tl.maximum(highest, tl.max(scores, 1))
    shrink = tl.exp2(highest - new_highest)
    weights = tl.exp2(scores - new_highest[:, None])
    total = total * shrink + tl.sum(weights, 1)
    acc *= shrink[:, None]
    if MOST > 0:
        v_scales, peak = relative(tl.load(v_scale_ptr + scaled, mask=inside, other=0.0))
        acc += tl.dot((weights * v_scales[None, :]).to(v.dtype), v, input_precision="ieee") * peak
    else:
        acc += tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    return new_highest, total, acc


@jit
def store_result(
    highest, total, acc, out_ptr, acc_ptr, max_ptr, sum_ptr, arrivals_ptr, row, kv_head, split, heads, d,
    GROUP: tl.constexpr, G: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr, PAD: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Stores the results of a group of query heads, or of its split, of which the last one to end merges all."""
    g, first = tl.arange(0, G), row * heads + kv_head * GROUP
    pair, in_group = first + g, g < GROUP
    if SPLITS == 1:
        out = out_ptr + pair[:, None] * DIM + d[None, :]
        tl.store(out, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=in_group[:, None] & (d < DIM)[None, :])
    else:
        place = pair * SPLITS + split
        tl.store(acc_ptr + place[:, None] * PAD + d[None, :], acc, mask=in_group[:, None] & (d < PAD)[None, :])
        tl.store(max_ptr + place, highest, mask=in_group)
        tl.store(sum_ptr + place, total, mask=in_group)
        if is_last(arrivals_ptr + row * tl.num_programs(1) + kv_head, SPLITS):
            merge_group(acc_ptr, max_ptr, sum_ptr, out_ptr, first, GROUP, G, DIM, D, PAD, SPLITS)


@dependent
def attend(
    q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, new_k_ptr, new_v_ptr, angles_ptr, tables_ptr, slots_ptr, lengths_ptr,
    out_ptr, acc_ptr, max_ptr, sum_ptr, arrivals_ptr,
    scale, q_row, q_head, k_row, v_row, block_stride, head_stride, scale_stride, table_stride,
    GROUP: tl.constexpr, G: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr, PAD: tl.constexpr, HALF: tl.constexpr,
    BLOCK: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, NEW: tl.constexpr, MOST: tl.constexpr,
    CAP: tl.constexpr, REACH: tl.constexpr,
):  # fmt: skip
    # lengths and tables: who writes these lets no kernel start before it ends
    let_next_start()
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    heads = tl.num_programs(1) * GROUP
    length = tl.load(lengths_ptr + row)
    table = tables_ptr + tl.load(slots_ptr + row) * table_stride
    wait_for_inputs()
    g, d = tl.arange(0, G), tl.arange(0, D)
    head = kv_head * GROUP + tl.minimum(g, GROUP - 1)  # those beyond are computed, too, and not stored
    angles = angles_ptr + row * 2 * HALF
    q = head_values((q_ptr + row * q_row + head * q_head)[:, None], angles, d[None, :], DIM, HALF)
    highest = tl.full([G], -float("inf"), tl.float32)
    total = tl.zeros([G], tl.float32)
    acc = tl.zeros([G, D], tl.float32)
    cached = length
    if NEW:
        cached = length - 1
        is_writer = split == 0
        new_k, new_v = new_token(
            new_k_ptr + row * k_row + kv_head * DIM, new_v_ptr + row * v_row + kv_head * DIM, angles, d,
            k_ptr + kv_head * head_stride, v_ptr + kv_head * head_stride, k_scale_ptr + kv_head * BLOCK,
            v_scale_ptr + kv_head * BLOCK, table, cached, is_writer, block_stride, scale_stride, DIM, HALF, BLOCK, MOST,
        )  # fmt: skip
        score = base_2_scores(tl.sum(q * new_k[None, :], 1) * scale, CAP)
        highest = tl.where(is_writer, score, highest)
        total = tl.where(is_writer, 1.0, total)
        acc = tl.where(is_writer, new_v[None, :], acc)
    if MOST > 0:
        q, scale = query_for_8_bits(q, scale, q_ptr.dtype.element_ty)
    else:
        q = q.to(q_ptr.dtype.element_ty)
    seen = 0  # the first token
    if REACH >= 0:
        seen = tl.maximum(length - 1 - REACH, 0)
    share = share_of(cached - seen, SPLITS, BLOCK)
    begin = seen + split * share
    end = tl.minimum(begin + share, cached)
    for start in range(begin, end, TILE):
        n = start + tl.arange(0, TILE)
        inside = n < end
        block = tl.load(table + n // BLOCK, mask=inside, other=0).to(tl.int64)
        highest, total, acc = attend_tile(
            highest, total, acc, q, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, block, n % BLOCK, inside, kv_head, d, scale,
            block_stride, head_stride, scale_stride, DIM, BLOCK, MOST, CAP,
        )  # fmt: skip
    store_result(
        highest, total, acc, out_ptr, acc_ptr, max_ptr, sum_ptr, arrivals_ptr, row, kv_head, split, heads, d, GROUP, G,
        DIM, D, PAD, SPLITS,
    )  # fmt: skip
