"""Attention of query rows, one or few a sequence, over a paged key/value cache.

One operation serves decode and cross-attention: every row names its slot, and sees the first `lengths[row]` tokens of
that slot's block table. Several query heads may share a head of keys and values (Ainslie et al., arXiv:2305.13245).
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlm.ops.attention_variant import PLAIN, AttentionVariant, attend
from vlm.ops.paged_kv import PagedKV


def reference(
    q: Tensor,
    kv: PagedKV,
    tables: Tensor,
    slots: Tensor,
    lengths: Tensor,
    scale: float,
    bias: Tensor | None = None,
    variant: AttentionVariant = PLAIN,
) -> Tensor:
    k, v, inside = cached_tokens(kv, tables, slots, lengths)
    longest = inside.shape[1]
    mask = None if len(q) == 1 or bool(inside.all()) else inside[:, None, None]
    back = torch.arange(longest, device=q.device) - (lengths[:, None] - 1)
    if bias is not None:
        most = bias.shape[1] // 2
        row_bias = bias[:, back.clamp(-most, most) + most].transpose(0, 1)[:, :, None]  # [R, H, 1, T]
        mask = row_bias if mask is None else row_bias.masked_fill(~mask, float("-inf"))
    # the query heads that share a head of keys stand where a sequence's queries do
    queries = q.float().view(len(q), k.shape[1], -1, q.shape[2])
    y = attend(queries, k, v, variant.within(mask, back[:, None, None]), scale, variant)
    return y.reshape(q.shape).to(q.dtype)


def cached_tokens(kv: PagedKV, tables: Tensor, slots: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the first T tokens of each row's block table, T the most of `lengths`: keys and values [R, H_kv, T, D]
    float32, not to be written to, and which of them a row sees [R, T]; the others are 0."""
    longest = int(lengths.max())
    blocks = tables[slots.long(), : -(-longest // kv.block_size)].long()  # [R, n]
    run = _run(blocks)
    sides = ((kv.keys, kv.key_scales), (kv.values, kv.value_scales))
    k, v = (_gathered(cache, scales, blocks, run)[:, :, :longest] for cache, scales in sides)
    inside = torch.arange(longest, device=lengths.device) < lengths[:, None]
    if len(blocks) > 1 and not bool(inside.all()):
        # what an ended sequence left in a block may be anything, and 0 · NaN is NaN
        for part in (k, v):
            part.masked_fill_(~inside[:, None, :, None], 0.0)
    return k, v, inside


def _run(blocks: Tensor) -> slice | None:
    """Returns the place of one row's blocks [1, n] in the cache, where they lie behind each other there."""
    if len(blocks) > 1:
        return None
    numbers = blocks[0].tolist()
    run = range(numbers[0], numbers[0] + len(numbers))
    return slice(run.start, run.stop) if numbers == [*run] else None


def _gathered(cache: Tensor, scales: Tensor | None, blocks: Tensor, run: slice | None) -> Tensor:
    """Gathers blocks [R, n] of a cache [N, H, block, D] -> [R, H, n * block, D] float32, a view of one copy, or of the
    cache itself where they are a run of it.

    Whole blocks are copied where a block's memory holds its tokens one after the other, as the CPU's cache does.
    """

    def taken(cache: Tensor) -> Tensor:
        by_token = cache.transpose(1, 2)
        return by_token[run] if run is not None else by_token.index_select(0, blocks.reshape(-1))

    rows = taken(cache).float()  # [R * n, block, H, D]
    if scales is not None:  # of values in 8 bits: the rows are a copy
        rows *= taken(scales)[..., None]
    return rows.reshape(len(blocks), -1, *rows.shape[2:]).transpose(1, 2)


def paged_attention(
    q: Tensor,
    kv: PagedKV,
    tables: Tensor,
    slots: Tensor,
    lengths: Tensor,
    scale: float,
    bias: Tensor | None = None,
    variant: AttentionVariant = PLAIN,
) -> Tensor:
    """Computes softmax(q kᵀ · scale + bias) v per row, as the variant says.

    q [R, H, D]; kv of H_kv heads, H a multiple of H_kv; tables [S, n] int32, the blocks of each slot; slots [R] int32;
    lengths [R] int32, at least 1; bias [H, 2 M + 1] float32, where H = H_kv: what is added at key - query distance
    -M … M, the ends for all beyond, the query the last of its `lengths` tokens -> [R, H, D]
    """
    if q.is_cuda:
        from vlm.ops.kernels.paged_attention import paged_attention as kernel

        return kernel(q, kv, tables, slots, lengths, scale, bias, variant)
    return reference(q, kv, tables, slots, lengths, scale, bias, variant)
