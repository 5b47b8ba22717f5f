"""A decode step's attention: each row's new key and value enter the paged cache, and the row attends to all of it."""

from __future__ import annotations

from torch import Tensor

from vlm.ops.attention.kv_write import kv_write
from vlm.ops.attention.paged_attention import paged_attention
from vlm.ops.attention.rotary import rotary_kv_write
from vlm.ops.attention_variant import PLAIN, AttentionVariant
from vlm.ops.layouts.paged_kv import NewTokens, PagedKV


def step_attention(
    q: Tensor,
    new: NewTokens,
    kv: PagedKV,
    tables: Tensor,
    slots: Tensor,
    lengths: Tensor,
    scale: float,
    bias: Tensor | None = None,
    variant: AttentionVariant = PLAIN,
) -> Tensor:
    """Writes each row's new token to its place, the last of its `lengths`, then does what `paged_attention` says, of
    whose arguments these are; where there are angles, queries and keys are turned first. No two rows write to one
    place. Where rows are so few that the context is split, one kernel does it all."""
    if q.is_cuda:
        from vlm.ops.kernels import paged_attention as kernel

        if kernel.writes_too(q, kv, tables, new):
            return kernel.paged_attention(q, kv, tables, slots, lengths, scale, bias, variant, new)
    if new.angles is None:
        kv_write(new.k, new.v, kv, tables, slots, new.places)
    else:
        q = rotary_kv_write(q, new.k, new.v, new.angles, kv, tables, slots, new.places)
    return paged_attention(q, kv, tables, slots, lengths, scale, bias, variant)
