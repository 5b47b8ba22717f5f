"""Scales each row by its own adapter's vector ((IA)³, https://arxiv.org/abs/2205.05638)."""

from __future__ import annotations

from torch import Tensor


def scale_rows(x: Tensor, adapter_ids: Tensor, scales: Tensor) -> Tensor:
    """Computes x ⊙ scales[adapter_ids] of x [R, width], in its type.

    adapter_ids [R] int32, scales [n + 1, width], whose last row is that of NO_ADAPTER, -1
    """
    return (x * scales[adapter_ids]).to(x.dtype)
