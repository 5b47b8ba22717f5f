"""Weights of 8 bits, a scale an output channel: symmetric, what they meet stays in the computing type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from vlm.layers.quant.base import Cut, ParameterSpec
from vlm.layers.quant.inputs import QuantizedMethod
from vlm.ops.activation import Activation
from vlm.ops.products.quantized_linear import linear8

MOST = 127  # -128 is not used: the range is symmetric


@dataclass(frozen=True)
class Int8(QuantizedMethod):
    """Keeps `weight` [out, in] of 8 bits and `weight_scale` [out, 1] float32."""

    dtype: ClassVar[torch.dtype] = torch.int8

    def layout(self, in_features: int, part_sizes: Mapping[str, int]) -> Mapping[str, ParameterSpec]:
        out = sum(part_sizes.values())
        return {
            "weight": ParameterSpec((out, in_features), self.dtype),
            "weight_scale": ParameterSpec((out, 1), torch.float32),
            **self.inputs.layout(in_features),
        }

    def quantize(self, weight: Tensor) -> dict[str, Tensor]:
        weight = weight.float()
        scale = weight.abs().amax(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / MOST
        return {"weight": (weight / scale).round_().clamp_(-MOST, MOST).to(torch.int8), "weight_scale": scale}

    def cut(self, name: str, values: Tensor, cut: Cut) -> Tensor:
        if name in self.inputs.layout(1):
            return self.inputs.cut(name, values, cut)
        rows = cut.of_rows(values)
        return cut.of_columns(rows) if name == "weight" else rows

    def dequantize(self, parameters: Mapping[str, Tensor]) -> Tensor:
        weight = parameters["weight"].float() * parameters["weight_scale"]
        return self.inputs.of_plain_rows(weight, parameters)

    def apply(self, linear: Any, x: Tensor, bias: Tensor | None, activation: Activation | None = None) -> Tensor:
        x = self.inputs.arranged(linear, x)
        return linear8(x, linear.weight, linear.weight_scale, bias, out_fp32=linear.out_fp32, activation=activation)
