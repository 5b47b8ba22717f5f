"""Greedy choice with its log-probability: one pass over the logits in parallel parts, then a merge."""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.dependent_launch import dependent, let_next_start, wait_for_inputs

PARTS = 32
TILE = 1024


@dependent
def _part(logits_ptr, best_ptr, at_ptr, sum_ptr, V, row_stride, PARTS: tl.constexpr, TILE: tl.constexpr):
    let_next_start()
    wait_for_inputs()
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    share = tl.cdiv(tl.cdiv(V, PARTS), TILE) * TILE
    begin = part * share
    end = tl.minimum(begin + share, V)
    best = -float("inf")
    at = V
    total = 0.0
    for start in range(begin, end, TILE):
        i = start + tl.arange(0, TILE)
        x = tl.load(logits_ptr + row * row_stride + i, mask=i < end, other=-float("inf")).to(tl.float32)
        highest = tl.max(x)
        # the first of equals: an earlier tile keeps the place
        at = tl.where(highest > best, start + tl.argmax(x, 0), at)  # pyright: ignore[reportOperatorIssue]
        new_best = tl.maximum(best, highest)
        total = total * tl.exp(best - new_best) + tl.sum(tl.exp(x - new_best))
        best = new_best
    tl.store(best_ptr + row * PARTS + part, best)
    tl.store(at_ptr + row * PARTS + part, at)
    tl.store(sum_ptr + row * PARTS + part, total)


@dependent
def _merge(best_ptr, at_ptr, sum_ptr, token_ptr, logprob_ptr, PARTS: tl.constexpr):
    let_next_start()
    wait_for_inputs()
    row = tl.program_id(0)
    i = tl.arange(0, PARTS)
    best = tl.load(best_ptr + row * PARTS + i)
    at = tl.load(at_ptr + row * PARTS + i)
    highest = tl.max(best)
    token = tl.min(tl.where(best == highest, at, 2147483647))
    total = tl.sum(tl.load(sum_ptr + row * PARTS + i) * tl.exp(best - highest))
    tl.store(token_ptr + row, token.to(tl.int64))  # pyright: ignore[reportAttributeAccessIssue]
    tl.store(logprob_ptr + row, -tl.log(total))


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    rows, vocab = logits.shape
    floats = torch.empty((2, rows, PARTS), dtype=torch.float32, device=logits.device)
    at = torch.empty((rows, PARTS), dtype=torch.int32, device=logits.device)
    token = torch.empty(rows, dtype=torch.int64, device=logits.device)
    logprob = torch.empty(rows, dtype=torch.float32, device=logits.device)
    _part[(rows, PARTS)](logits, floats[0], at, floats[1], vocab, logits.stride(0), PARTS=PARTS, TILE=TILE)
    _merge[(rows,)](floats[0], at, floats[1], token, logprob, PARTS=PARTS, num_warps=1)
    return token, logprob
