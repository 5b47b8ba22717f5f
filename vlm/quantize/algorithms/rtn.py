"""Round to nearest: each weight by itself, on the grid of its channel, group or tensor."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vlm.layers.quant.base import LinearMethod
from vlm.quantize.algorithms.base import Parameters
from vlm.quantize.statistics import Needs, Statistics


@dataclass(frozen=True)
class RoundToNearest:
    """Rounds weights as the method does. `per_tensor`: all channels of a weight share a scale. `largest_input`: what
    the largest input is kept as, where activations have a static scale; None: they have none."""

    method: LinearMethod
    per_tensor: bool = False
    largest_input: float | None = None

    @property
    def needs(self) -> Needs | None:
        return None if self.largest_input is None else Needs()

    def parameters(self, weight: Tensor, statistics: Statistics | None) -> Parameters:
        parameters = self._of_tensor(weight) if self.per_tensor else self.method.quantize(weight)
        if self.largest_input is not None and statistics is not None:
            parameters["input_scale"] = (statistics.max_abs.max() / self.largest_input)[None]
        return parameters

    def _of_tensor(self, weight: Tensor) -> Parameters:
        """Returns the parameters of the weight [out, in] with one scale, repeated for its channels."""
        whole = self.method.quantize(weight.reshape(1, -1))
        return {"weight": whole["weight"].view_as(weight), "weight_scale": whole["weight_scale"].repeat(len(weight), 1)}
