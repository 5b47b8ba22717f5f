"""What happens to the rows that a quantized Linear gets, before its product: one place for all methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from vlm.errors import ConfigError
from vlm.layers.quant.base import Cut, ParameterSpec


@dataclass(frozen=True)
class Inputs:
    """Says which parameters of its inputs a Linear has beside those of its weight.

    x is multiplied by `pre_quant_scale` [in] float32, then taken in the order of `input_order` [in] int32. A product
    that rounds x does so by `input_scale` [1] float32, without it by a scale for each row.
    """

    pre_quant_scale: bool = False
    input_order: bool = False
    input_scale: bool = False

    def layout(self, in_features: int) -> dict[str, ParameterSpec]:
        """Returns these parameters by their names in the Linear."""
        specs = {
            "pre_quant_scale": ParameterSpec((in_features,), torch.float32),
            "input_order": ParameterSpec((in_features,), torch.int32),
            "input_scale": ParameterSpec((1,), torch.float32),
        }
        return {name: spec for name, spec in specs.items() if getattr(self, name)}

    def arranged(self, linear: Any, x: Tensor) -> Tensor:
        """Returns x [..., in] as the product of the weight that is kept takes it, in the type of x."""
        if self.pre_quant_scale:
            x = (x * linear.pre_quant_scale).to(x.dtype)
        return x.index_select(-1, linear.input_order) if self.input_order else x

    def cut(self, name: str, values: Tensor, cut: Cut) -> Tensor:
        """Returns one of these parameters of the inputs that a rank has. Raises ConfigError for an order of which it
        has a part."""
        if name == "input_scale":
            return values
        if name == "input_order" and (cut.columns.start or cut.columns.stop < len(values)):
            raise ConfigError(
                "a layer takes its inputs in another order (act-order), so ranks cannot split them; build for one GPU,"
                " or quantize the model without it."
            )
        return cut.of_columns(values)

    def static_scale(self, linear: Any) -> Tensor | None:
        """Returns the scale [1] by which rows are rounded; None: each by its own."""
        return linear.input_scale if self.input_scale else None

    def of_plain_rows(self, weight: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        """Returns the weight [out, in] float32 whose product with x is that of `weight` with arranged x."""
        if self.input_order:
            weight = weight.index_select(1, parameters["input_order"].long().argsort())
        return weight * parameters["pre_quant_scale"] if self.pre_quant_scale else weight


@dataclass(frozen=True)
class QuantizedMethod:
    """What methods other than Dense have in common. `quantize` returns what is of the weight alone: the parameters of
    the inputs come from who knows them."""

    row_scale: ClassVar[str] = "weight_scale"
    inputs: Inputs = field(default=Inputs(), kw_only=True)

    def with_inputs(self, inputs: Inputs) -> Self:
        """Returns the same method for a Linear with these parameters of its inputs."""
        return replace(self, inputs=inputs)
