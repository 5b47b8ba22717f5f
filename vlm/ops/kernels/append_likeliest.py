"""The end of a greedy step: the likeliest token of each part of the vocabulary, in parallel; what appends the first of
them adds up their shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.append_and_check_stop import append_and_check_stop
from vlm.ops.kernels.dependent_launch import dependent, let_next_start, wait_for_inputs
from vlm.ops.layouts.padded_rows import VECTOR

if TYPE_CHECKING:
    from vlm.ops.state.sequences import SequenceState

# tokens of the vocabulary, and warps, of a program: the fastest of nine on an H200 with 1 and 32 rows, and with 128
FEW_ROWS, FEW_ROWS_PART, MANY_ROWS_PART = 32, (1024, 2), (4096, 8)


@dependent
def _likeliest(
    logits_ptr, token_ptr, best_ptr, sum_ptr, V, stride, vectors, PART: tl.constexpr, VECTOR: tl.constexpr
):  # fmt: skip
    let_next_start()
    wait_for_inputs()
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = part * PART + tl.arange(0, PART)
    x = tl.load(logits_ptr + row * stride * VECTOR + i, mask=i // VECTOR < vectors, other=0.0)
    x = x.to(tl.float32)
    x = tl.where((i < V) & (x == x), x, -float("inf"))  # NaN is never chosen
    best, at = tl.max(x, 0, return_indices=True)  # the first of equals
    out = row * tl.num_programs(1) + part
    tl.store(token_ptr + out, part * PART + at)
    tl.store(best_ptr + out, best)
    base = tl.where(best == -float("inf"), 0.0, best)  # a part of nothing but -inf adds nothing
    tl.store(sum_ptr + out, tl.sum(tl.exp(x - base)))


def append_likeliest(state: SequenceState, slots: Tensor, logits: Tensor) -> None:
    rows, vocab_size = logits.shape
    part, warps = FEW_ROWS_PART if rows <= FEW_ROWS else MANY_ROWS_PART
    parts = triton.cdiv(vocab_size, part)
    tokens = torch.empty((rows, parts), dtype=torch.int32, device=logits.device)
    best, sums = torch.empty((2, rows, parts), dtype=torch.float32, device=logits.device)
    vector = VECTOR if _in_vectors(logits) else 1
    _likeliest[(rows, parts)](
        logits, tokens, best, sums, vocab_size, logits.stride(0) // vector, triton.cdiv(vocab_size, vector), PART=part,
        VECTOR=vector, num_warps=warps,
    )  # fmt: skip
    append_and_check_stop(state, slots, tokens, best, sums)


def _in_vectors(logits: Tensor) -> bool:
    """Says whether rows begin at whole vectors, and memory goes on to the end of the last one's last vector."""
    stride, (rows, vocab_size) = logits.stride(0), logits.shape
    end = logits.storage_offset() + (rows - 1) * stride + triton.cdiv(vocab_size, VECTOR) * VECTOR
    has_whole_rows = stride % VECTOR == 0 and logits.storage_offset() % VECTOR == 0
    return bool(has_whole_rows and end * logits.element_size() <= logits.untyped_storage().nbytes())
