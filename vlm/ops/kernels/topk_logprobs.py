"""The k highest of each row: those of 32 tokens each whose highest is among the k highest of all such groups'. So parts
of the vocabulary look for the groups' highest side by side, and a program a row takes its pick."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.draw import ordered
from vlm.ops.kernels.jit import jit

PART, GROUP = 2048, 32  # tokens of a part, and of a group
NOTHING = tl.constexpr(-(1 << 63))  # lower than the key of anything


@jit
def _key(x, i):
    """Returns integers in the order of the numbers x, of equal ones the first highest, with their index i within."""
    x = tl.where(x == 0, 0.0, x)  # -0.0, too
    return (ordered(x.to(tl.int32, bitcast=True)).to(tl.int64) << 32) + (2147483647 - i)


@jit
def _highest(keys):
    return tl.max(keys)


@jit
def _part(
    logits_ptr, groups_ptr, top_ptr, sum_ptr, V, stride, parts, PART: tl.constexpr, GROUP: tl.constexpr
):  # fmt: skip
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = part * PART + tl.arange(0, PART)
    x = tl.load(logits_ptr + row * stride + i, mask=i < V, other=-float("inf")).to(tl.float32)
    x = tl.where(x == x, x, -float("inf"))  # NaN is never among them
    group = part * (PART // GROUP) + tl.arange(0, PART // GROUP)
    highest = tl.max(tl.reshape(x, [PART // GROUP, GROUP]), 1)
    tl.store(groups_ptr + row * parts * (PART // GROUP) + group, highest)
    top = tl.max(highest)
    tl.store(top_ptr + row * parts + part, top)
    # a part of nothing but -inf adds nothing
    tl.store(sum_ptr + row * parts + part, tl.sum(tl.exp(x - tl.where(top == -float("inf"), 0.0, top))))


@jit
def _take(
    logits_ptr, groups_ptr, top_ptr, sum_ptr, chosen_ptr, values_ptr, ids_ptr, norm_ptr, V, stride, parts, groups, K,
    chosen, PARTS: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS)
    tops = tl.load(top_ptr + row * parts + part, mask=part < parts, other=-float("inf"))
    sums = tl.load(sum_ptr + row * parts + part, mask=part < parts, other=0.0)
    highest = tl.max(tops)
    sums *= tl.exp(tl.where(tops == -float("inf"), 0.0, tops) - highest)
    tl.store(norm_ptr + row, highest + tl.log(tl.sum(tl.where(part < parts, sums, 0.0))))
    if K > 0:
        g = tl.arange(0, GROUPS)
        keys = _key(tl.load(groups_ptr + row * groups + g, mask=g < groups, other=0.0), g)
        keys = tl.where(g < groups, keys, NOTHING)
        for n in range(chosen):
            key = _highest(keys)
            tl.store(chosen_ptr + row * chosen + n, 2147483647 - (key & 0xFFFFFFFF).to(tl.int32))
            keys = tl.where(keys == key, NOTHING, keys)
        tl.debug_barrier()  # all are written before any is read
        c = tl.arange(0, CANDIDATES)
        group = tl.load(chosen_ptr + row * chosen + c // GROUP, mask=c < chosen * GROUP, other=0)
        token = group * GROUP + c % GROUP
        there = (c < chosen * GROUP) & (token < V)
        x = tl.load(logits_ptr + row * stride + token, mask=there, other=0.0).to(tl.float32)
        keys = tl.where(there, _key(tl.where(x == x, x, -float("inf")), token), NOTHING)
        for n in range(K):
            key = _highest(keys)
            value = ordered((key >> 32).to(tl.int32)).to(tl.float32, bitcast=True)
            tl.store(values_ptr + row * K + n, value)
            tl.store(ids_ptr + row * K + n, 2147483647 - (key & 0xFFFFFFFF))
            keys = tl.where(keys == key, NOTHING, keys)


def topk_logprobs(logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    rows, vocab = logits.shape
    assert logits.stride(1) == 1
    parts = triton.cdiv(vocab, PART)
    groups = parts * (PART // GROUP)
    chosen = min(k, groups)
    new = lambda *size, dtype=torch.float32: torch.empty(size, dtype=dtype, device=logits.device)  # noqa: E731
    highest, top, total = new(rows, groups), new(rows, parts), new(rows, parts)
    values, ids, norm = new(rows, k), new(rows, k, dtype=torch.int64), new(rows)
    _part[(rows, parts)](
        logits, highest, top, total, vocab, logits.stride(0), parts, PART=PART, GROUP=GROUP, num_warps=4
    )
    _take[(rows,)](
        logits, highest, top, total, new(rows, chosen, dtype=torch.int32), values, ids, norm, vocab, logits.stride(0),
        parts, groups, k, chosen, PARTS=triton.next_power_of_2(parts), GROUPS=triton.next_power_of_2(groups),
        GROUP=GROUP, CANDIDATES=triton.next_power_of_2(max(chosen, 1) * GROUP), num_warps=4,
    )  # fmt: skip
    return values, ids, norm
