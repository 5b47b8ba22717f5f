"""Weights and what they meet in whole numbers of 8 bits: a scale an output channel, and one a row, found as the rows
come, or a static one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from vlm.layers.quant.int8 import Int8
from vlm.ops.activation import Activation
from vlm.ops.products.w8a8 import w8a8


@dataclass(frozen=True)
class W8A8(Int8):
    """Keeps what Int8 keeps."""

    def apply(self, linear: Any, x: Tensor, bias: Tensor | None, activation: Activation | None = None) -> Tensor:
        x, scale = self.inputs.arranged(linear, x), self.inputs.static_scale(linear)
        options = {"static_scale": scale, "out_fp32": linear.out_fp32, "activation": activation}
        return w8a8(x, linear.weight, linear.weight_scale, bias, **options)


def rounds_rows(modules: Iterable[nn.Module]) -> bool:
    """Says whether any product of a network's modules rounds the rows that it is given."""
    return any(isinstance(getattr(module, "method", None), W8A8) for module in modules)
