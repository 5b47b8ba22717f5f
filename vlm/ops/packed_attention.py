"""Bidirectional attention of packed sequences: no padding, every row sees the rows of its own sequence.

The work is a list of tiles, each some query rows of one sequence. T5's relative bias is a function of the distance
alone, constant from a maximum on, so it is a short vector a head, looked up as scores are made: never an S x S table.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from vlm.ops.tiles import TILE_ROWS


def tiles_of(lengths: Iterable[int], rows: int | None = TILE_ROWS) -> list[tuple[int, int, int]]:
    """Returns tiles of at most `rows` query rows: (first query row, first row, row after the last of its sequence)."""
    tiles, begin = [], 0
    for length in lengths:
        tiles += [(start, begin, begin + length) for start in range(begin, begin + length, rows or length)]
        begin += length
    return tiles


def reference(q: Tensor, k: Tensor, v: Tensor, tiles: Tensor, scale: float, bias: Tensor | None = None) -> Tensor:
    out = torch.empty_like(q)
    todo = tiles.tolist()
    for (start, begin, end), following in zip(todo, [*todo[1:], [len(q)] * 3], strict=True):
        queries = slice(start, min(end, following[0]))
        one, keys, values = (x.transpose(0, 1)[None].float() for x in (q[queries], k[begin:end], v[begin:end]))
        if bias is None:
            y = F.scaled_dot_product_attention(one, keys, values, scale=scale)
        else:
            # with the queries turned round, the table of biases is a view of its vector
            mask = _toeplitz(bias, queries.start - begin, queries.stop - begin, end - begin)
            y = F.scaled_dot_product_attention(one.flip(2), keys, values, attn_mask=mask[None], scale=scale).flip(2)
        out[queries] = y[0].transpose(0, 1).to(q.dtype)
    return out


def attention_weights(q: Tensor, k: Tensor, tiles: Tensor, scale: float, bias: Tensor | None) -> list[Tensor]:
    """Returns softmax(q kᵀ · scale + bias) of each sequence, [H, T, T] float32: for those who look at them."""
    weights = []
    for begin, end in dict.fromkeys((b, e) for _, b, e in tiles.tolist() if e > b):
        scores = torch.einsum("qhd,khd->hqk", q[begin:end].float(), k[begin:end].float()) * scale
        if bias is not None:
            scores = scores + _toeplitz(bias, 0, end - begin, end - begin).flip(1)
        weights.append(scores.softmax(-1))
    return weights


def _toeplitz(bias: Tensor, first: int, last: int, keys: int) -> Tensor:
    """Returns [H, last - first, keys] of [H, 2 M + 1], entry (i, j) that of key j for query last - 1 - i; a view."""
    most = bias.shape[1] // 2
    distances = torch.arange(1 - last, keys - first, device=bias.device).clamp(-most, most) + most
    vector = bias[:, distances].contiguous()
    return vector.as_strided((len(bias), last - first, keys), (vector.shape[1], 1, 1))


def packed_attention(
    q: Tensor, k: Tensor, v: Tensor, tiles: Tensor, scale: float, bias: Tensor | None = None
) -> Tensor:
    """Computes softmax(q kᵀ · scale + bias) v within each sequence.

    q, k, v [R, H, D] (may be strided views); tiles [T, 3] int32 (`tiles_of`, in order), on CUDA empty ones (0, 0, 0)
    may follow; bias [H, 2 M + 1] float32: what is added at key - query distance -M … M, the ends for all beyond
    -> [R, H, D]
    """
    if q.is_cuda:
        from vlm.ops.kernels.packed_attention import packed_attention as kernel

        return kernel(q, k, v, tiles, scale, bias)
    return reference(q, k, v, tiles, scale, bias)
