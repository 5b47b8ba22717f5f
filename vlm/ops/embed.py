"""Looks token ids up in a table, and where they lie beyond it takes a given row instead (prompt tables)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def reference(token_ids: Tensor, weight: Tensor, table: Tensor | None, at: Tensor | None, scale: float) -> Tensor:
    if table is None or at is None:
        found = F.embedding(token_ids, weight)
        return found if scale == 1.0 else found * scale
    learned = reference(token_ids.clamp(max=len(weight) - 1), weight, None, None, scale)
    return torch.where((token_ids < len(weight))[:, None], learned, F.embedding(at, table).to(weight.dtype))


def embed(
    token_ids: Tensor, weight: Tensor, table: Tensor | None = None, at: Tensor | None = None, scale: float = 1.0
) -> Tensor:
    """out[r] = weight[id] · scale for ids below V, else table[at[r]].

    token_ids, at [R] int32; weight [V, C]; table [n, C], None where no id is V or more -> [R, C]
    """
    if token_ids.is_cuda:
        from vlm.ops.kernels.embed import embed as kernel

        return kernel(token_ids, weight, table, at, scale)
    return reference(token_ids, weight, table, at, scale)
