"""A decode step's attention: each row's new key and value enter the paged cache, and the row attends to all of it."""

from __future__ import annotations

from torch import Tensor

from vlm.ops import kv_write, paged_attention, rotary
from vlm.ops.paged_kv import NewTokens, PagedKV


def reference(
    q: Tensor,
    new: NewTokens,
    kv: PagedKV,
    tables: Tensor,
    slots: Tensor,
    lengths: Tensor,
    scale: float,
    bias: Tensor | None = None,
) -> Tensor:
    places = lengths - 1
    if new.angles is None:
        kv_write.reference(new.k, new.v, kv, tables, slots, places)
    else:
        q = rotary.reference(q, new.k, new.v, new.angles, kv, tables, slots, places)
    return paged_attention.reference(q, kv, tables, slots, lengths, scale, bias)


def step_attention(
    q: Tensor,
    new: NewTokens,
    kv: PagedKV,
    tables: Tensor,
    slots: Tensor,
    lengths: Tensor,
    scale: float,
    bias: Tensor | None = None,
) -> Tensor:
    """Writes each row's new token to the last of its `lengths` places, then does what `paged_attention` says, of whose
    arguments these are; where there are angles, queries and keys are turned first. No two rows write to one place."""
    if q.is_cuda:
        from vlm.ops.kernels.paged_attention import paged_attention as kernel

        return kernel(q, kv, tables, slots, lengths, scale, bias, new)
    return reference(q, new, kv, tables, slots, lengths, scale, bias)
