"""Attention of packed query rows over a paged key/value cache.

One operation serves decode, prefill and cross-attention: every row names its slot, and sees the first `lengths[row]`
tokens of that slot's block table. In a prefill all rows of a sequence are written before any of them attends, so
`length = position + 1` is the causal mask.
"""

from __future__ import annotations

import torch
from torch import Tensor


def reference(
    q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, slots: Tensor, lengths: Tensor, scale: float
) -> Tensor:
    block_size = keys.shape[2]
    longest = int(lengths.max())
    blocks = tables[slots.long(), : -(-longest // block_size)].long()  # [R, n]
    k, v = (_rows(cache[blocks])[:, :, :longest] for cache in (keys, values))  # [R, H, T, D]
    hidden = torch.arange(longest, device=q.device) >= lengths[:, None]  # [R, T]
    # float32 throughout, as the kernel accumulates
    scores = torch.einsum("rhd,rhtd->rht", q.float() * scale, k.float())
    weights = scores.masked_fill(hidden[:, None], float("-inf")).softmax(-1)
    # what an ended sequence left in a block may be anything, and 0 · NaN is NaN
    v = v.float().masked_fill(hidden[:, None, :, None], 0.0)
    return torch.einsum("rht,rhtd->rhd", weights, v).to(q.dtype)


def _rows(blocks: Tensor) -> Tensor:
    """[R, n, H, block, D] -> [R, H, n * block, D]"""
    r, n, h, b, d = blocks.shape
    return blocks.transpose(1, 2).reshape(r, h, n * b, d)


def paged_attention(
    q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, slots: Tensor, lengths: Tensor, scale: float
) -> Tensor:
    """softmax(q kᵀ · scale) v per row.

    q [R, H, D]; keys, values [blocks, H, block_size, D]; tables [S, n] int32, the blocks of each slot;
    slots [R] int32; lengths [R] int32, at least 1 -> [R, H, D]
    """
    if q.is_cuda:
        from vlm.ops.kernels.paged_attention import paged_attention as kernel

        return kernel(q, keys, values, tables, slots, lengths, scale)
    return reference(q, keys, values, tables, slots, lengths, scale)
