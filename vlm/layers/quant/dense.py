"""Weights as they are: one matrix in the type that the network computes in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from vlm.layers.quant.base import Cut, ParameterSpec
from vlm.ops.activation import Activation
from vlm.ops.products.linear import linear as matmul


class Dense:
    """Keeps `weight` [out, in]."""

    row_scale: ClassVar[str] = "weight"

    def layout(self, in_features: int, part_sizes: Mapping[str, int]) -> Mapping[str, ParameterSpec]:
        return {"weight": ParameterSpec((sum(part_sizes.values()), in_features))}

    def quantize(self, weight: Tensor) -> dict[str, Tensor]:
        return {"weight": weight}

    def cut(self, name: str, values: Tensor, cut: Cut) -> Tensor:
        return cut.of_columns(cut.of_rows(values))

    def dequantize(self, parameters: Mapping[str, Tensor]) -> Tensor:
        return parameters["weight"].float()

    def apply(self, linear: Any, x: Tensor, bias: Tensor | None, activation: Activation | None = None) -> Tensor:
        return matmul(x, linear.weight, bias, out_fp32=linear.out_fp32, activation=activation)
