"""Attention whose context is cut into splits, a program each: the last one to end merges the results of all."""

from __future__ import annotations

import triton.language as tl

from vlm.ops.kernels.jit import jit


@jit
def is_last(arrivals_ptr, SPLITS: tl.constexpr):
    """Says whether the other programs have stored what they computed, and sets their count to zero for the next
    kernel."""
    tl.debug_barrier()  # what all threads have stored is seen by who sees that this program has arrived
    last = tl.atomic_add(arrivals_ptr, 1) == SPLITS - 1
    tl.store(arrivals_ptr, 0, mask=last)
    return last


@jit
def merge(acc_ptr, max_ptr, sum_ptr, out_ptr, pair, D: tl.constexpr, PAD: tl.constexpr, SPLITS: tl.constexpr):
    """Stores the result [D] of one row and head (`pair`) of what its splits stored: sums of values [PAD] by weights
    relative to a maximum, the maxima and the sums of weights. Reads past the first-level cache, which may be older."""
    s, d = tl.arange(0, SPLITS), tl.arange(0, PAD)
    highest = tl.load(max_ptr + pair * SPLITS + s, cache_modifier=".cg")
    # a split beyond the context has maximum -inf, hence weight 0
    weight = tl.exp2(highest - tl.max(highest))
    acc = tl.load(acc_ptr + (pair * SPLITS + s)[:, None] * PAD + d[None, :], cache_modifier=".cg")
    total = tl.sum(tl.load(sum_ptr + pair * SPLITS + s, cache_modifier=".cg") * weight)
    out = tl.sum(acc * weight[:, None], 0) / total  # pyright: ignore[reportOperatorIssue]
    tl.store(out_ptr + pair * D + d, out.to(out_ptr.dtype.element_ty), mask=d < D)
