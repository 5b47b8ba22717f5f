"""Causal attention of many rows a sequence over the paged cache: a prompt, or a chunk of one.

The rows' keys and values are in the cache before any of them attends, with those of earlier chunks and of blocks that
another sequence filled. The work is a list of tiles, each some consecutive rows of one sequence.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from vlm.ops.attention_variant import PLAIN, AttentionVariant, attend
from vlm.ops.layouts.paged_kv import PagedKV
from vlm.ops.layouts.tiles import TILE_ROWS


def tiles_of(chunks: Iterable[tuple[int, int, int]], rows: int | None = TILE_ROWS) -> list[tuple[int, int, int, int]]:
    """Cuts chunks into tiles: (slot, first position, rows) of each chunk, in the order of the rows -> (first row, rows,
    slot, first position) of each tile"""
    tiles, row = [], 0
    for slot, position, count in chunks:
        step = rows or count
        tiles += [(row + i, min(step, count - i), slot, position + i) for i in range(0, count, step)]
        row += count
    return tiles


def reference(
    q: Tensor,
    kv: PagedKV,
    tables: Tensor,
    tiles: Tensor,
    scale: float,
    bias: Tensor | None = None,
    variant: AttentionVariant = PLAIN,
) -> Tensor:
    out = torch.empty_like(q)
    for row, count, slot, position in tiles.tolist():
        if count:
            sides = ((kv.keys, kv.key_scales), (kv.values, kv.value_scales))
            k, v = (_held(*side, tables[slot], position + count) for side in sides)
            queries = q[row : row + count]
            mask = _mask(queries, k, position, bias, variant)
            out[row : row + count] = _attend(queries, k, v, scale, mask, variant).to(q.dtype)
    return out


def _held(cache: Tensor, scales: Tensor | None, table: Tensor, length: int) -> Tensor:
    """Returns the first `length` tokens of a block table, [H, length, D] float32."""
    blocks = table[: -(-length // cache.shape[2])].long()
    rows = cache.transpose(1, 2)[blocks].float()  # [n, block, H, D]
    if scales is not None:
        rows *= scales.transpose(1, 2)[blocks][..., None]
    return rows.flatten(0, 1)[:length].transpose(0, 1)


def _mask(q: Tensor, k: Tensor, position: int, bias: Tensor | None, variant: AttentionVariant) -> Tensor | None:
    """Returns [rows, keys] of what is seen, or [H, rows, keys] of what is added."""
    distances = (
        torch.arange(k.shape[1], device=q.device) - torch.arange(position, position + len(q), device=q.device)[:, None]
    )
    if bias is None:
        return variant.within(distances <= 0, distances)
    most = bias.shape[1] // 2
    added = bias[:, distances.clamp(-most, most) + most].masked_fill(distances > 0, float("-inf"))
    return variant.within(added, distances)


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None, variant: AttentionVariant) -> Tensor:
    """Attends under a mask: q [R, H, D], k, v [H_kv, T, D] -> [R, H, D]"""
    groups = q.shape[1] // len(k)
    k, v = (x.repeat_interleave(groups, 0)[None] for x in (k, v))
    y = attend(q.transpose(0, 1)[None].float(), k, v, mask, scale, variant)
    return y[0].transpose(0, 1)


def prefill_attention(
    q: Tensor,
    kv: PagedKV,
    tables: Tensor,
    tiles: Tensor,
    scale: float,
    bias: Tensor | None = None,
    variant: AttentionVariant = PLAIN,
) -> Tensor:
    """Computes softmax(q kᵀ · scale + bias) v as the variant says, each row over its sequence's tokens up to and with
    its own.

    q [R, H, D] (may be a strided view); kv of H_kv heads, H a multiple of H_kv; tables [S, n] int32; tiles [T, 4] int32
    (`tiles_of`; empty ones may follow); bias [H, 2 M + 1] float32 by key - query distance -> [R, H, D]
    """
    if q.is_cuda:
        from vlm.ops.kernels.prefill_attention import prefill_attention as kernel

        return kernel(q, kv, tables, tiles, scale, bias, variant)
    return reference(q, kv, tables, tiles, scale, bias, variant)
