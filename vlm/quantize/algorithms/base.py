"""What an algorithm of quantization is, and how well what it returns multiplies."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Protocol

from torch import Tensor

from vlm.layers.quant.base import LinearMethod
from vlm.quantize.statistics import Needs, Statistics

Parameters = dict[str, Tensor]


class Algorithm(Protocol):
    """Finds the parameters with which a method keeps the weight of a Linear. One object serves all layers."""

    @property
    def method(self) -> LinearMethod: ...

    @property
    def needs(self) -> Needs | None:
        """Returns what it asks of the inputs; None: nothing, it quantizes without calibration."""
        ...

    def parameters(self, weight: Tensor, statistics: Statistics | None) -> Parameters:
        """Returns the method's parameters for a weight [out, in] float32. `statistics` is None only where `needs`
        is."""
        ...


def product(method: LinearMethod, parameters: Mapping[str, Tensor], rows: Tensor) -> Tensor:
    """Returns the rows [R, in] times the weight that parameters stand for, as a Linear computes it: [R, out]."""
    return method.apply(SimpleNamespace(**parameters, out_fp32=False), rows, None)


def output_error(method: LinearMethod, parameters: Mapping[str, Tensor], weight: Tensor, rows: Tensor) -> float:
    """Returns the mean squared error of the rows' products, which are rows weightᵀ."""
    return float((product(method, parameters, rows) - rows @ weight.t()).square().mean())
