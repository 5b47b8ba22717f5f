"""Attention of query rows, one or few a sequence, over a paged key/value cache.

One operation serves decode and cross-attention: every row names its slot, and sees the first `lengths[row]` tokens of
that slot's block table. Several query heads may share a head of keys and values (Ainslie et al., arXiv:2305.13245).
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlm.ops.attention_variant import PLAIN, AttentionVariant, attend
from vlm.ops.layouts.paged_kv import PagedKV

Blocks = slice | Tensor  # numbers of a cache's blocks, rows behind each other


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
    mask = None if len(q) == 1 or bool(inside.all()) else inside[:, None, None]
    if bias is not None or variant.reach is not None:
        back = torch.arange(inside.shape[1], device=q.device) - (lengths[:, None] - 1)
        if bias is not None:
            most = bias.shape[1] // 2
            row_bias = bias[:, back.clamp(-most, most) + most].transpose(0, 1)[:, :, None]  # [R, H, 1, T]
            mask = row_bias if mask is None else row_bias.masked_fill(~mask, float("-inf"))
        mask = variant.within(mask, back[:, None, None])
    # the query heads that share a head of keys stand where a sequence's queries do
    queries = q.float().view(len(q), k.shape[1], -1, q.shape[2])
    y = attend(queries, k, v, mask, scale, variant)
    return y.reshape(q.shape).to(q.dtype)


def cached_tokens(kv: PagedKV, tables: Tensor, slots: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the first T tokens of each row's block table, T the most of `lengths`: keys and values [R, H_kv, T, D]
    float32, not to be written to, and which of them a row sees [R, T]; the others are 0."""
    longest = int(lengths.max())
    blocks = _blocks(tables, slots, -(-longest // kv.block_size))
    sides = ((kv.keys, kv.key_scales), (kv.values, kv.value_scales))
    k, v = (_gathered(cache, scales, blocks, len(slots))[:, :, :longest] for cache, scales in sides)
    inside = torch.arange(longest, device=lengths.device) < lengths[:, None]
    if len(slots) > 1 and not bool(inside.all()):
        # what an ended sequence left in a block may be anything, and 0 · NaN is NaN
        for part in (k, v):
            part.masked_fill_(~inside[:, None, :, None], 0.0)
    return k, v, inside


def _blocks(tables: Tensor, slots: Tensor, count: int) -> Blocks:
    """Returns the numbers of the first blocks of each row's table: of one row alone as a slice, where they follow each
    other in the cache."""
    if len(slots) > 1:
        return tables[slots.long(), :count].long().flatten()
    table = tables[int(slots), :count]
    numbers = table.tolist()
    run = range(numbers[0], numbers[0] + count)
    return slice(run.start, run.stop) if numbers == [*run] else table.long()


def _gathered(cache: Tensor, scales: Tensor | None, blocks: Blocks, rows: int) -> Tensor:
    """Gathers the blocks of so many rows from a cache [N, H, block, D] -> [R, H, n * block, D] float32, a view of one
    copy, or of the cache itself where they are a slice of it.

    Whole blocks are copied where a block's memory holds its tokens one after the other, as the CPU's cache does.
    """

    def gather(side: Tensor) -> Tensor:
        by_token = side.transpose(1, 2)
        return by_token[blocks] if isinstance(blocks, slice) else by_token.index_select(0, blocks)

    tokens = gather(cache).float()  # [R * n, block, H, D]
    if scales is not None:  # of values in 8 bits: the tokens are a copy
        tokens *= gather(scales)[..., None]
    return tokens.reshape(rows, -1, *tokens.shape[2:]).transpose(1, 2)


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
