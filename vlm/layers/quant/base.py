"""What a Linear asks of the method that keeps its weight: how the weight is laid out, and the product with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class ParameterSpec:
    """The shape of one parameter of a Linear and its type; None: the type that the network computes in."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None = None


class LinearMethod(Protocol):
    """Keeps the weights of Linear layers in one format and multiplies with them. One object serves all layers."""

    def layout(self, in_features: int, part_sizes: Mapping[str, int]) -> Mapping[str, ParameterSpec]:
        """Returns the parameters, by the names that they have in the Linear and so in checkpoints, of a weight that
        takes rows of `in_features` values to the parts of these sizes, one after the other. Raises ConfigError for
        sizes that it cannot keep."""
        ...

    def quantize(self, weight: Tensor) -> dict[str, Tensor]:
        """Returns these parameters of a weight [out, in], floating ones in float32, but for those of the inputs
        (vlm.layers.quant.inputs). Each has a row for each output, which depends on that row of the weight alone."""
        ...

    def dequantize(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Returns the weight [out, in] float32 that parameters stand for."""
        ...

    def apply(self, linear: Any, x: Tensor, bias: Tensor | None) -> Tensor:
        """Returns x Wᵀ + bias [..., out] of x [..., in]. `linear` (a Linear, a TiedHead) has the parameters of the
        layout as attributes, and `out_fp32`: whether a product in float16 comes as float32."""
        ...
