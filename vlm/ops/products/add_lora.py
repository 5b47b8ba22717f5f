"""Adds to each row what its own low-rank adapter makes of it: y + x Aᵀ B (LoRA, https://arxiv.org/abs/2106.09685)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from vlm.ops.layouts.lora_matrices import LoraMatrices


def reference(product: Callable[[Tensor], Tensor], x: Tensor, adapter_ids: Tensor, matrices: LoraMatrices) -> Tensor:
    y = product(x)
    for a, b, columns in matrices.parts():
        count, rank, _ = a.shape
        # one product with the matrices of all adapters, of which only a row's own is kept
        shrunk = F.linear(x, a.flatten(0, 1)).view(len(x), count, rank)
        is_own = adapter_ids[:, None] == torch.arange(count, device=x.device)
        y[:, columns] += shrunk.masked_fill(~is_own[..., None], 0.0).flatten(1) @ b.flatten(0, 1)
    return y


def add_lora(product: Callable[[Tensor], Tensor], x: Tensor, adapter_ids: Tensor, matrices: LoraMatrices) -> Tensor:
    """Returns product(x) [R, out], which is made anew, with what each row's own matrices add to it; rows of NO_ADAPTER
    are the product's.

    x [R, in]; adapter_ids [R] int32. Shapes do not depend on who has which adapter, nor does the host wait.
    """
    if x.is_cuda:
        from vlm.ops.kernels.add_lora import add_lora as kernel

        return kernel(product, x, adapter_ids, matrices)
    return reference(product, x, adapter_ids, matrices)
