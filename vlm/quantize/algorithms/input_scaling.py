"""What AWQ and SmoothQuant share: inputs are divided by a scale a channel, weights multiplied by it, then rounded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from vlm.layers.quant.base import LinearMethod
from vlm.quantize.algorithms.base import Parameters, output_error
from vlm.quantize.algorithms.rtn import RoundToNearest
from vlm.quantize.statistics import Needs, Statistics

SAMPLED_ROWS = 512  # of inputs, on which candidates are compared
SMALLEST = 1e-4  # of scales before they are normalized


@dataclass(frozen=True)
class InputScaling:
    """Takes of several scales of the inputs' channels the one whose products come closest to the dense weight's."""

    rounding: RoundToNearest
    scaled: bool = field(default=True, kw_only=True)  # else all scales are 1

    @property
    def method(self) -> LinearMethod:
        return self.rounding.method

    @property
    def needs(self) -> Needs:
        return Needs(rows=SAMPLED_ROWS)

    def scales(self, weight: Tensor, statistics: Statistics) -> Iterable[Tensor]:
        """Yields candidates [in], by which inputs are divided."""
        raise NotImplementedError

    def parameters(self, weight: Tensor, statistics: Statistics | None) -> Parameters:
        assert statistics is not None  # there are `needs`
        ones = [torch.ones_like(statistics.max_abs)]
        scales = list(self.scales(weight, statistics)) if self.scaled else ones
        if len(scales) == 1:
            return self._scaled(weight, statistics, scales[0])
        candidates = (self._scaled(weight, statistics, scale) for scale in scales)
        return best(self.method, candidates, weight, statistics.rows)

    def _scaled(self, weight: Tensor, statistics: Statistics, scale: Tensor) -> Parameters:
        scaled = replace(statistics, max_abs=statistics.max_abs / scale)
        return self.rounding.parameters(weight * scale, scaled) | {"pre_quant_scale": 1 / scale}


def best(method: LinearMethod, candidates: Iterable[Parameters], weight: Tensor, rows: Tensor) -> Parameters:
    """Returns the parameters whose products with the rows [R, in] come closest to the weight's; the first of equals."""
    return min(candidates, key=lambda parameters: output_error(method, parameters, weight, rows))


def normalized(scale: Tensor) -> Tensor:
    """Returns a scale [in] whose largest and smallest value have the geometric mean 1."""
    scale = scale.clamp(min=SMALLEST)
    return scale / torch.sqrt(scale.max() * scale.min())
