"""Adds to each row what its own low-rank adapter makes of it: y + x Aᵀ B (LoRA, https://arxiv.org/abs/2106.09685)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vlm.ops.lora_matrices import LoraMatrices


def reference(y: Tensor, x: Tensor, adapter_ids: Tensor, matrices: LoraMatrices) -> None:
    for a, b, columns in matrices.parts():
        count, rank, _ = a.shape
        # one product with the matrices of all adapters, of which only a row's own is kept
        shrunk = F.linear(x, a.flatten(0, 1)).view(len(x), count, rank)
        is_own = adapter_ids[:, None] == torch.arange(count, device=x.device)
        y[:, columns] += shrunk.masked_fill(~is_own[..., None], 0.0).flatten(1) @ b.flatten(0, 1)


def add_lora(y: Tensor, x: Tensor, adapter_ids: Tensor, matrices: LoraMatrices) -> None:
    """Adds to y [R, out] in place, of each row by its adapter's matrices; rows of NO_ADAPTER stay as they are.

    x [R, in]; adapter_ids [R] int32. Shapes do not depend on who has which adapter, nor does the host wait.
    """
    if y.is_cuda:
        from vlm.ops.kernels.add_lora import add_lora as kernel

        return kernel(y, x, adapter_ids, matrices)
    return reference(y, x, adapter_ids, matrices)
