"""Looks token ids up in a table, and takes a row that a prompt brings where an id lies beyond it; adds what was
learned of each position."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def reference(
    token_ids: Tensor,
    weight: Tensor,
    prompt_embeds: Tensor | None,
    index: Tensor | None,
    scale: float,
    positions: Tensor | None = None,
    position_weight: Tensor | None = None,
) -> Tensor:
    if positions is not None and position_weight is not None:
        return reference(token_ids, weight, prompt_embeds, index, scale) + F.embedding(positions, position_weight)
    if prompt_embeds is None or index is None:
        learned = F.embedding(token_ids, weight)
        return learned if scale == 1.0 else learned * scale
    learned = reference(token_ids.clamp(max=len(weight) - 1), weight, None, None, scale)
    return torch.where((token_ids < len(weight))[:, None], learned, F.embedding(index, prompt_embeds).to(weight.dtype))


def embed(
    token_ids: Tensor,
    weight: Tensor,
    prompt_embeds: Tensor | None = None,
    index: Tensor | None = None,
    scale: float = 1.0,
    positions: Tensor | None = None,
    position_weight: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Returns [R, C]: weight[id] · scale for ids below V, else prompt_embeds[index[r]]; where there is a
    `position_weight`, position_weight[positions[r]] is added.

    token_ids, index, positions [R] int32; weight [V, C]; prompt_embeds [n, C], None where no id is V or more;
    position_weight [P, C]; dtype: of the result, the weight's by default
    """
    if token_ids.is_cuda:
        from vlm.ops.kernels.embed import embed as kernel

        return kernel(token_ids, weight, prompt_embeds, index, scale, positions, position_weight, dtype)
    return reference(token_ids, weight, prompt_embeds, index, scale, positions, position_weight).to(
        dtype or weight.dtype
    )
