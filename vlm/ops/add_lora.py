"""Adds to each row what its own low-rank adapter makes of it: y + x Aᵀ B (LoRA, https://arxiv.org/abs/2106.09685)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def reference(y: Tensor, x: Tensor, adapter_ids: Tensor, *, a: Tensor, b: Tensor) -> None:
    count, rank, _ = a.shape
    # one product with the matrices of all adapters, and only a row's own is kept: shapes do not depend on who has which
    shrunk = F.linear(x, a.flatten(0, 1)).view(len(x), count, rank)
    is_own = adapter_ids[:, None] == torch.arange(count, device=x.device)
    y += shrunk.masked_fill(~is_own[..., None], 0.0).flatten(1) @ b.flatten(0, 1)


def add_lora(y: Tensor, x: Tensor, adapter_ids: Tensor, *, a: Tensor, b: Tensor) -> None:
    """Adds to y [R, out] in place, of each row by its adapter's matrices; rows of NO_ADAPTER stay as they are.

    x [R, in]; adapter_ids [R] int32; a [n, rank, in], b [n, rank, out], with zeros beyond an adapter's own rank
    """
    reference(y, x, adapter_ids, a=a, b=b)
