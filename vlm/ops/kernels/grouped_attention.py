"""Flash-decoding where several query heads share a head of keys and values: a program per (row, head of keys, split).

A group's queries are the rows of a matrix, so every key and value is read once for all of them; its products are the
tensor cores'.
"""

from __future__ import annotations

import triton.language as tl

from vlm.ops.kernels.dependent_launch import dependent, let_next_start, wait_for_inputs

TILE = 64  # tokens a step of a program


@dependent
def attend(
    q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, tables_ptr, slots_ptr, lengths_ptr, out_ptr, max_ptr, sum_ptr,
    scale, q_row, q_head, block_stride, head_stride, scale_stride, table_stride,
    GROUP: tl.constexpr, G: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr, PAD: tl.constexpr,
    BLOCK: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, QUANTIZED: tl.constexpr,
):  # fmt: skip
    let_next_start()
    wait_for_inputs()
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    heads = tl.num_programs(1) * GROUP
    length = tl.load(lengths_ptr + row)
    table = tables_ptr + tl.load(slots_ptr + row) * table_stride
    share = tl.cdiv(tl.cdiv(length, SPLITS), TILE) * TILE
    begin = split * share
    end = tl.minimum(begin + share, length)
    g, d = tl.arange(0, G), tl.arange(0, D)
    head = kv_head * GROUP + g
    asks = (g < GROUP)[:, None] & (d < DIM)[None, :]
    q = tl.load(q_ptr + row * q_row + head[:, None] * q_head + d[None, :], mask=asks, other=0.0)
    highest = tl.full([G], -float("inf"), tl.float32)
    total = tl.zeros([G], tl.float32)
    acc = tl.zeros([G, D], tl.float32)
    for start in range(begin, end, TILE):
        n = start + tl.arange(0, TILE)
        inside = n < end
        block = tl.load(table + n // BLOCK, mask=inside, other=0).to(tl.int64)
        at = (block * block_stride + kv_head * head_stride + (n % BLOCK) * DIM)[:, None] + d[None, :]
        mask = inside[:, None] & (d < DIM)[None, :]
        k = tl.load(k_ptr + at, mask=mask, other=0.0)
        v = tl.load(v_ptr + at, mask=mask, other=0.0)
        if QUANTIZED:
            scaled = block * scale_stride + kv_head * BLOCK + n % BLOCK
            k, v = k.to(q.dtype), v.to(q.dtype)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if QUANTIZED:
            scores *= tl.load(k_scale_ptr + scaled, mask=inside, other=0.0)[None, :]
        scores = tl.where(inside[None, :], scores, -float("inf"))
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        shrink = tl.exp2(highest - new_highest)
        weights = tl.exp2(scores - new_highest[:, None])
        total = total * shrink + tl.sum(weights, 1)
        if QUANTIZED:
            weights *= tl.load(v_scale_ptr + scaled, mask=inside, other=0.0)[None, :]
        acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        highest = new_highest
    place = (row * heads + head) * SPLITS + split
    if SPLITS == 1:
        out = out_ptr + place[:, None] * DIM + d[None, :]
        tl.store(out, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=asks)
    else:
        tl.store(out_ptr + place[:, None] * PAD + d[None, :], acc, mask=(g < GROUP)[:, None] & (d < PAD)[None, :])
        tl.store(max_ptr + place, highest, mask=g < GROUP)
        tl.store(sum_ptr + place, total, mask=g < GROUP)
