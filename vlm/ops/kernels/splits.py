"""Attention whose context is cut into splits, a program each: the last one to end merges the results of all."""

from __future__ import annotations

import triton.language as tl

from vlm.ops.kernels.jit import jit


@jit
def share_of(count, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """Returns how many of so many tokens a split has, in blocks: in whole tiles of 64, of eight splits of 73 tokens
    three would have none."""
    return tl.cdiv(tl.cdiv(count, SPLITS), BLOCK) * BLOCK


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


@jit
def merge_group(
    acc_ptr, max_ptr, sum_ptr, out_ptr, first,
    GROUP: tl.constexpr, G: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr, PAD: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Does for GROUP pairs from `first` on what `merge` does for one, all of them at once: one after another each would
    wait for its own loads."""
    # splits whose values are requested at once
    UNROLL: tl.constexpr = SPLITS if SPLITS < 8 else 8  # pyright: ignore[reportAssignmentType]
    g, s, d = tl.arange(0, G), tl.arange(0, SPLITS), tl.arange(0, D)
    pair = first + tl.minimum(g, GROUP - 1)  # those beyond are computed, too, and not stored
    places = (pair * SPLITS)[:, None] + s[None, :]
    highest = tl.max(tl.load(max_ptr + places, cache_modifier=".cg"), 1)
    acc, total = tl.zeros([G, D], tl.float32), tl.zeros([G], tl.float32)
    for begin in range(0, SPLITS, UNROLL):
        for each in tl.static_range(UNROLL):  # pyright: ignore[reportGeneralTypeIssues]
            place = pair * SPLITS + begin + each
            weight = tl.exp2(tl.load(max_ptr + place, cache_modifier=".cg") - highest)
            total += tl.load(sum_ptr + place, cache_modifier=".cg") * weight
            at = acc_ptr + place[:, None] * PAD + d[None, :]
            acc += tl.load(at, mask=(d < PAD)[None, :], other=0.0, cache_modifier=".cg") * weight[:, None]
    out = out_ptr + pair[:, None] * DIM + d[None, :]
    mask = (g < GROUP)[:, None] & (d < DIM)[None, :]
    tl.store(out, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=mask)
