"""Attention of query rows over two parts of a paged cache in one softmax: their own sequence and its encoder's output.

T5Gemma 2 (arXiv:2512.14856) merges self- and cross-attention so. A window hides tokens of the sequence alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlm.ops.attention.paged_attention import cached_tokens
from vlm.ops.attention_variant import PLAIN, AttentionVariant, attend
from vlm.ops.layouts.paged_kv import PagedKV


def reference(
    q: Tensor,
    kv: PagedKV,
    tables: tuple[Tensor, Tensor],
    slots: Tensor,
    lengths: tuple[Tensor, Tensor],
    scale: float,
    variant: AttentionVariant = PLAIN,
) -> Tensor:
    own, crossed = (cached_tokens(kv, table, slots, count) for table, count in zip(tables, lengths, strict=True))
    back = torch.arange(own[2].shape[1], device=q.device) - (lengths[0][:, None] - 1)
    seen = variant.within(own[2], back)
    assert seen is not None
    k, v = (torch.cat(parts, 2) for parts in zip(own[:2], crossed[:2], strict=True))
    mask = torch.cat((seen, crossed[2]), 1)[:, None, None]
    # the query heads that share a head of keys stand where a sequence's queries do
    queries = q.float().view(len(q), k.shape[1], -1, q.shape[2])
    return attend(queries, k, v, mask, scale, variant).reshape(q.shape).to(q.dtype)


def merged_attention(
    q: Tensor,
    kv: PagedKV,
    tables: tuple[Tensor, Tensor],
    slots: Tensor,
    lengths: tuple[Tensor, Tensor],
    scale: float,
    variant: AttentionVariant = PLAIN,
) -> Tensor:
    """Computes softmax(q kᵀ · scale) v per row over the first `lengths[0][row]` tokens of its slot's first table, as
    the variant says, and the first `lengths[1][row]` of its second one.

    q [R, H, D]; kv of H_kv heads, H a multiple of H_kv; tables [S, n] and [S, m] int32, the blocks of each slot's
    sequence and of its encoder's output; slots [R] int32; lengths [R] int32 each, at least 1, the query the last token
    of its sequence -> [R, H, D]
    """
    if q.is_cuda:
        from vlm.ops.kernels.merged_attention import merged_attention as kernel

        return kernel(q, kv, tables, slots, lengths, scale, variant)
    return reference(q, kv, tables, slots, lengths, scale, variant)
