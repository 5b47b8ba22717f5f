"""Attention of query rows over an encoder's hidden rows themselves, of which keys and values are two products.

Of a hidden row h a head's key is K h and its value V h. So a score q · K h is (q K) · h, and V is applied to the sum of
weighed rows: queries and sums are multiplied instead of what they meet, and a step reads one row a token where it read
a key and a value. Biases of keys move all scores of a query alike, which a softmax does not see; those of values are
added to every sum. (DeepSeek-V2, arXiv:2405.04434, section 2.1.2, absorbs its projections so.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlm.ops.attention_variant import PLAIN, attend
from vlm.ops.layouts.paged_kv import HiddenRows


def reference(q: Tensor, weight: Tensor, bias: Tensor | None, hidden: HiddenRows, scale: float) -> Tensor:
    (rows, heads, dim), longest = q.shape, int(hidden.lengths.max())
    to_keys, to_values = weight.float().view(2, heads, dim, -1)
    count = -(-longest // hidden.blocks.shape[1])
    h = hidden.blocks[hidden.tables[hidden.slots.long(), :count].long()].float().flatten(1, 2)[:, :longest]
    inside = torch.arange(longest, device=q.device) < hidden.lengths[:, None]
    h = h.masked_fill(~inside[..., None], 0.0)[:, None]
    queries = torch.einsum("rhd,hde->rhe", q.float(), to_keys)[:, None]
    mixed = attend(queries, h, h, inside[:, None, None], scale, PLAIN).view(rows, heads, -1)
    y = torch.einsum("rhe,hde->rhd", mixed, to_values)
    return (y if bias is None else y + bias.float().view(2, heads, dim)[1]).to(q.dtype)


def absorbed_attention(q: Tensor, weight: Tensor, bias: Tensor | None, hidden: HiddenRows, scale: float) -> Tensor:
    """Computes softmax(q kᵀ · scale) v per row over the first `lengths[row]` hidden rows of its slot, whose keys and
    values are hidden · weightᵀ + bias.

    q [R, H, D]; weight [2 · H · D, E]: of all heads' keys, then of their values; bias [2 · H · D] -> [R, H, D]
    """
    if q.is_cuda:
        from vlm.ops.kernels.absorbed_attention import absorbed_attention as kernel

        return kernel(q, weight, bias, hidden, scale)
    return reference(q, weight, bias, hidden, scale)


def has_kernel(
    heads: int, head_dim: int, width: int, dtype: torch.dtype, device: torch.device, *, block_size: int
) -> bool:
    """Tells whether it is one for so many heads over hidden rows of this width, so many of them a block: elsewhere keys
    and values are read in less time than the reference takes."""
    if device.type != "cuda":
        return False
    from vlm.ops.kernels.absorbed_attention import fits

    return fits(heads, head_dim, width, dtype, device, block_size=block_size)
