"""Weights of 4 bits in groups along the inputs, a scale a group; with zero points where they are asymmetric."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vlm.errors import ConfigError
from vlm.layers.quant.base import Cut, ParameterSpec
from vlm.layers.quant.inputs import QuantizedMethod
from vlm.ops.activation import Activation
from vlm.ops.layouts.int4_packing import levels4, packed4, unpacked4
from vlm.ops.products.quantized_linear import linear4

LEVELS = 16
MIDDLE = 8  # what a symmetric weight of 0 is kept as


@dataclass(frozen=True)
class Int4(QuantizedMethod):
    """Keeps `weight_packed` [out, in / 2] uint8 (`packed4`), `weight_scale` [out, groups] float32 and, where it is
    asymmetric, `weight_zero` [out, groups] uint8: w = (level - zero) · scale."""

    group_size: int = 128
    symmetric: bool = True

    def layout(self, in_features: int, part_sizes: Mapping[str, int]) -> Mapping[str, ParameterSpec]:
        if in_features % 4:
            raise ConfigError(
                f"weights of 4 bits are kept of layers whose inputs are a multiple of 4, not {in_features}; name such"
                " layers with ignore.",
                settings=("ignore",),
            )
        if in_features % self.group_size:
            raise ConfigError(
                f"groups of {self.group_size} weights do not divide {in_features} inputs; give group_size"
                f" {self._largest_divisor(in_features)}, or name such layers with ignore.",
                settings=("group_size", "ignore"),
            )
        out, groups = sum(part_sizes.values()), in_features // self.group_size
        specs = {
            "weight_packed": ParameterSpec((out, in_features // 2), torch.uint8),
            "weight_scale": ParameterSpec((out, groups), torch.float32),
            **self.inputs.layout(in_features),
        }
        return specs if self.symmetric else specs | {"weight_zero": ParameterSpec((out, groups), torch.uint8)}

    def quantize(self, weight: Tensor) -> dict[str, Tensor]:
        grouped = weight.float().unflatten(1, (-1, self.group_size))  # [out, groups, group]
        scale, zero = self.grid(grouped)
        return self.packed(self.levels(grouped, scale[..., None], zero[..., None]).flatten(1), scale, zero)

    def cut(self, name: str, values: Tensor, cut: Cut) -> Tensor:
        if name in self.inputs.layout(1):
            return self.inputs.cut(name, values, cut)
        rows = cut.of_rows(values)
        if name != "weight_packed":
            return cut.of_columns(rows, self.group_size)
        if cut.columns == slice(0, 2 * rows.shape[1]):
            return rows
        return packed4(cut.of_columns(levels4(rows)).contiguous())

    def dequantize(self, parameters: Mapping[str, Tensor]) -> Tensor:
        weight = unpacked4(parameters["weight_packed"], parameters["weight_scale"], parameters.get("weight_zero"))
        return self.inputs.of_plain_rows(weight, parameters)

    def apply(self, linear: Any, x: Tensor, bias: Tensor | None, activation: Activation | None = None) -> Tensor:
        x = self.inputs.arranged(linear, x)
        packed, scale = linear.weight_packed, linear.weight_scale
        zero = None if self.symmetric else linear.weight_zero
        return linear4(x, packed, scale, zero, bias, out_fp32=linear.out_fp32, activation=activation)

    def grid(self, grouped: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the scale and the zero point of each group of [out, groups, group]: [out, groups] float32."""
        tiny = torch.finfo(torch.float32).tiny
        if self.symmetric:
            scale = (grouped.abs().amax(2) / (MIDDLE - 1)).clamp(min=tiny)
            return scale, torch.full_like(scale, MIDDLE)
        low, high = grouped.amin(2).clamp(max=0), grouped.amax(2).clamp(min=0)
        scale = ((high - low) / (LEVELS - 1)).clamp(min=tiny)
        return scale, (-low / scale).round().clamp(0, LEVELS - 1)

    def levels(self, weight: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
        """Returns the levels, whole numbers in float32, that come closest to weights."""
        return (weight / scale).round_().add_(zero).clamp_(0, LEVELS - 1)

    def packed(self, levels: Tensor, scale: Tensor, zero: Tensor) -> dict[str, Tensor]:
        """Returns the parameters that levels [out, in] are kept as, with scales and zero points [out, groups]."""
        parameters = {"weight_packed": packed4(levels.to(torch.uint8)), "weight_scale": scale}
        return parameters if self.symmetric else parameters | {"weight_zero": zero.to(torch.uint8)}

    def _largest_divisor(self, in_features: int) -> int:
        sizes = (size for size in (128, 64, 32, 16, 8, 4, 2) if size < self.group_size and in_features % size == 0)
        return next(sizes, 1)
