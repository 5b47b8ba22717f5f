"""Bidirectional attention of packed sequences: no padding, every row sees the rows of its own sequence.

The work is a list of tiles, each some query rows of one sequence. T5's relative bias is a function of the distance
alone, constant from a maximum on, so it is a short vector a head, looked up as scores are made: never an S x S table.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import torch
from torch import Tensor

from vlm.ops.attention_variant import PLAIN, AttentionVariant, attend
from vlm.ops.layouts.tiles import TILE_ROWS


def tiles_of(lengths: Iterable[int], rows: int | None = TILE_ROWS) -> list[tuple[int, int, int]]:
    """Returns tiles of at most `rows` query rows: (first query row, first row, row after the last of its sequence)."""
    spans = itertools.pairwise(itertools.accumulate(lengths, initial=0))
    return [(start, begin, end) for begin, end in spans for start in range(begin, end, rows or end - begin)]


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tiles: Tensor,
    scale: float,
    bias: Tensor | None = None,
    variant: AttentionVariant = PLAIN,
) -> Tensor:
    out, groups = torch.empty_like(q), q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    todo = tiles.tolist()
    for (start, begin, end), following in zip(todo, [*todo[1:], [len(q)] * 3], strict=True):
        queries = slice(start, min(end, following[0]))
        one, keys, values = (x.transpose(0, 1)[None].float() for x in (q[queries], k[begin:end], v[begin:end]))
        mask = _mask(bias, variant, q.device, first=queries.start - begin, last=queries.stop - begin, keys=end - begin)
        if mask is None:
            y = attend(one, keys, values, None, scale, variant)
        else:
            # with the queries turned round, the table of biases is a view of its vector
            y = attend(one.flip(2), keys, values, mask, scale, variant).flip(2)
        out[queries] = y[0].transpose(0, 1).to(q.dtype)
    return out


def attention_weights(
    q: Tensor, k: Tensor, tiles: Tensor, scale: float, bias: Tensor | None, variant: AttentionVariant = PLAIN
) -> list[Tensor]:
    """Returns the softmax of `packed_attention` for each sequence, [H, T, T] float32: for those who look at it."""
    weights, k = [], k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    for begin, end in dict.fromkeys((b, e) for _, b, e in tiles.tolist() if e > b):
        scores = torch.einsum("qhd,khd->hqk", q[begin:end].float(), k[begin:end].float()) * scale
        mask = _mask(bias, variant, q.device, first=0, last=end - begin, keys=end - begin)
        scores = variant.capped(scores)
        if mask is not None:
            mask = mask.flip(-2)
            scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
        weights.append(scores.softmax(-1))
    return weights


def _mask(
    bias: Tensor | None, variant: AttentionVariant, device: torch.device, *, first: int, last: int, keys: int
) -> Tensor | None:
    """Returns what is seen [queries, keys] or added [H, queries, keys], entry (i, j) that of key j for query
    last - 1 - i."""
    table = None if bias is None else _toeplitz(bias, first, last, keys)
    queries = torch.arange(last - 1, first - 1, -1, device=device)
    return variant.within(table, torch.arange(keys, device=device) - queries[:, None])


def _toeplitz(bias: Tensor, first: int, last: int, keys: int) -> Tensor:
    """Returns [H, last - first, keys] of [H, 2 M + 1], entry (i, j) that of key j for query last - 1 - i; a view."""
    most = bias.shape[1] // 2
    distances = torch.arange(1 - last, keys - first, device=bias.device).clamp(-most, most) + most
    vector = bias[:, distances].contiguous()
    return vector.as_strided((len(bias), last - first, keys), (vector.shape[1], 1, 1))


def packed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tiles: Tensor,
    scale: float,
    bias: Tensor | None = None,
    variant: AttentionVariant = PLAIN,
) -> Tensor:
    """Computes softmax(q kᵀ · scale + bias) v within each sequence, as the variant says.

    q [R, H, D], k, v [R, H_kv, D] (may be strided views), H a multiple of H_kv; tiles [T, 3] int32 (`tiles_of`, in
    order), on CUDA empty ones (0, 0, 0) may follow; bias [H, 2 M + 1] float32: what is added at key - query distance
    -M … M, the ends for all beyond -> [R, H, D]
    """
    if q.is_cuda:
        from vlm.ops.kernels.packed_attention import packed_attention as kernel

        return kernel(q, k, v, tiles, scale, bias, variant)
    return reference(q, k, v, tiles, scale, bias, variant)
