"""What a Linear asks of the method that keeps its weight: how the weight is laid out, and the product with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from vlm.errors import ConfigError
from vlm.ops.activation import Activation


@dataclass(frozen=True)
class Cut:
    """The rows, some runs of them, and the columns of a whole weight [out, in] that one rank has. Rows beyond its last
    one are zeros."""

    rows: list[slice]
    columns: slice

    def of_rows(self, values: Tensor) -> Tensor:
        """Returns the rank's rows of what has a row for each output: [rows, ...]"""
        parts = [values[run] for run in self.rows]
        missing = sum(run.stop - run.start for run in self.rows) - sum(map(len, parts))
        return torch.cat([*parts, values.new_zeros(missing, *values.shape[1:])]) if missing else torch.cat(parts)

    def of_columns(self, values: Tensor, width: int = 1) -> Tensor:
        """Returns the rank's part of the last dimension, each of whose values stands for `width` inputs. Raises
        ConfigError where it would have parts of one."""
        if self.columns.start % width or self.columns.stop % width:
            raise ConfigError(
                f"inputs {self.columns.start} to {self.columns.stop} of a layer are no whole groups of {width}, so"
                " ranks cannot split it; build with a smaller group_size, or for fewer GPUs.",
                settings=("group_size",),
            )
        return values[..., self.columns.start // width : self.columns.stop // width]


@dataclass(frozen=True)
class ParameterSpec:
    """The shape of one parameter of a Linear and its type; None: the type that the network computes in."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None = None


class LinearMethod(Protocol):
    """Keeps the weights of Linear layers in one format and multiplies with them. One object serves all layers."""

    row_scale: ClassVar[str]  # names the floating parameter [out, ...] whose rows those of the weight are multiples of

    def layout(self, in_features: int, part_sizes: Mapping[str, int]) -> Mapping[str, ParameterSpec]:
        """Returns the parameters, by the names that they have in the Linear and so in checkpoints, of a weight that
        takes rows of `in_features` values to the parts of these sizes, one after the other. Raises ConfigError for
        sizes that it cannot keep."""
        ...

    def quantize(self, weight: Tensor) -> dict[str, Tensor]:
        """Returns these parameters of a weight [out, in], floating ones in float32, but for those of the inputs
        (vlm.layers.quant.inputs). Each has a row for each output, which depends on that row of the weight alone."""
        ...

    def cut(self, name: str, values: Tensor, cut: Cut) -> Tensor:
        """Returns one of these parameters of a part of the weight, of that of the whole. Raises ConfigError where the
        part cannot be kept by itself."""
        ...

    def dequantize(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Returns the weight [out, in] float32 that parameters stand for."""
        ...

    def apply(self, linear: Any, x: Tensor, bias: Tensor | None, activation: Activation | None = None) -> Tensor:
        """Returns the activation, if any, of x Wᵀ + bias [..., out], x [..., in]. `linear` (a Linear, a TiedHead) has
        the parameters of the layout as attributes, and `out_fp32`: whether a product in float16 comes as float32."""
        ...
