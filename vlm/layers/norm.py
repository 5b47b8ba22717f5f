"""Norms that first add what the last sublayer left: (stream, delta) -> (stream + delta, normalized), in one pass."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vlm.ops.add_layer_norm import add_layer_norm
from vlm.ops.add_rms_norm import add_rms_norm


class LayerNorm(nn.LayerNorm):
    """Turns x [..., C] and delta, None where there is nothing to add, into x + delta and its layer norm."""

    def forward(self, x: Tensor, delta: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return add_layer_norm(x, delta, self.weight, self.bias, self.eps)

    def of_sum(self, x: Tensor, delta: Tensor) -> Tensor:
        """Returns the layer norm of x + delta [..., C], a sum that nobody else reads: of a norm behind its sublayer."""
        return add_layer_norm(x, delta, self.weight, self.bias, self.eps, keeps_sum=False)[1]


class RmsNorm(nn.Module):
    """Turns x [..., C] and delta, None where there is nothing to add, into x + delta and its RMS norm."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor, delta: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return add_rms_norm(x, delta, self.weight, self.eps)
