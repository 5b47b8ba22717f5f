"""The k highest of each row: parallel parts take their own k highest from registers, a merge those of all."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.jit import jit

PARTS = 32


@jit
def _part(logits_ptr, best_ptr, at_ptr, top_ptr, sum_ptr, V, stride, K, PARTS: tl.constexpr, SHARE: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = part * SHARE + tl.arange(0, SHARE)
    x = tl.load(logits_ptr + row * stride + i, mask=i < V, other=-float("inf")).to(tl.float32)
    highest = tl.max(x)
    # a part of nothing but -inf adds nothing
    scale = tl.where(highest == -float("inf"), 0.0, highest)
    tl.store(top_ptr + row * PARTS + part, highest)
    tl.store(sum_ptr + row * PARTS + part, tl.sum(tl.exp(x - scale)))
    out = (row * PARTS + part) * K
    for k in range(K):
        value, place = tl.max(x), tl.argmax(x, 0)
        tl.store(best_ptr + out + k, value)
        tl.store(at_ptr + out + k, part * SHARE + place)
        x = tl.where(i == part * SHARE + place, -float("inf"), x)


@jit
def _merge(
    best_ptr, at_ptr, top_ptr, sum_ptr, values_ptr, ids_ptr, norm_ptr, K,
    PARTS: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS)
    tops = tl.load(top_ptr + row * PARTS + part)
    highest = tl.max(tops)
    sums = tl.load(sum_ptr + row * PARTS + part) * tl.exp(tl.where(tops == -float("inf"), 0.0, tops) - highest)
    tl.store(norm_ptr + row, highest + tl.log(tl.sum(sums)))
    i = tl.arange(0, ALL)
    x = tl.load(best_ptr + row * PARTS * K + i, mask=i < PARTS * K, other=-float("inf"))
    at = tl.load(at_ptr + row * PARTS * K + i, mask=i < PARTS * K, other=0)
    for k in range(K):
        value, place = tl.max(x), tl.argmax(x, 0)
        tl.store(values_ptr + row * K + k, value)
        tl.store(ids_ptr + row * K + k, tl.sum(tl.where(i == place, at, 0)).to(tl.int64))
        x = tl.where(i == place, -float("inf"), x)


def topk_logprobs(logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    rows, vocab = logits.shape
    assert logits.stride(1) == 1
    share = triton.next_power_of_2(triton.cdiv(vocab, PARTS))
    new = lambda *size, dtype=torch.float32: torch.empty(size, dtype=dtype, device=logits.device)  # noqa: E731
    best, at = new(rows, PARTS, k), new(rows, PARTS, k, dtype=torch.int32)
    top, total = new(rows, PARTS), new(rows, PARTS)
    values, ids, norm = new(rows, k), new(rows, k, dtype=torch.int64), new(rows)
    _part[(rows, PARTS)](
        logits, best, at, top, total, vocab, logits.stride(0), k, PARTS=PARTS, SHARE=share,
        num_warps=8 if share >= 4096 else 4,
    )  # fmt: skip
    _merge[(rows,)](
        best, at, top, total, values, ids, norm, k, PARTS=PARTS, ALL=triton.next_power_of_2(PARTS * k), num_warps=4
    )
    return values, ids, norm
