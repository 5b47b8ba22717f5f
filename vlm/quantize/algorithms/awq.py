"""AWQ (Lin et al., arXiv:2306.00978): channels that see large inputs are scaled up before their weights are rounded.

The scale is mean|x|^alpha, alpha from a grid; then the range of each group is clipped where that lowers the error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vlm.layers.quant.int4 import Int4
from vlm.quantize.algorithms.base import Parameters
from vlm.quantize.algorithms.input_scaling import InputScaling, best, normalized
from vlm.quantize.statistics import Statistics

STEPS = 20  # of alpha, from 0 on
SHRINKS = tuple(1 - 0.05 * step for step in range(11))  # of a group's range


@dataclass(frozen=True)
class Awq(InputScaling):
    """`plain`: the method without scales of the inputs; `clip`: search the ranges of groups, too."""

    plain: Int4
    clip: bool = True

    def scales(self, weight: Tensor, statistics: Statistics) -> Iterator[Tensor]:
        for step in range(STEPS):
            yield normalized(statistics.mean_abs ** (step / STEPS))

    def parameters(self, weight: Tensor, statistics: Statistics | None) -> Parameters:
        parameters = super().parameters(weight, statistics)
        if not self.clip or statistics is None:
            return parameters
        inverse = parameters["pre_quant_scale"]
        clipped = self._clipped(weight / inverse, statistics.rows * inverse)
        other = self.rounding.parameters(clipped, statistics) | {"pre_quant_scale": inverse}
        return best(self.method, (parameters, other), weight, statistics.rows)

    def _clipped(self, weight: Tensor, rows: Tensor) -> Tensor:
        """Returns the weight [out, in] with each group in the range whose rounded products come closest: of the group's
        own inputs alone."""
        grouped = weight.unflatten(1, (-1, self.plain.group_size))  # [out, groups, group]
        inputs = rows.unflatten(1, (-1, self.plain.group_size))
        gram = torch.einsum("rgi,rgj->gij", inputs, inputs)
        largest = grouped.abs().amax(2, keepdim=True)
        least, result = torch.full_like(largest, torch.inf), grouped
        for shrink in SHRINKS:
            clipped = grouped.clamp(-largest * shrink, largest * shrink)
            difference = self._rounded(clipped) - grouped
            error = (torch.einsum("ogi,gij->ogj", difference, gram) * difference).sum(2, keepdim=True)
            result = torch.where(error < least, clipped, result)
            least = torch.minimum(error, least)
        return result.flatten(1)

    def _rounded(self, grouped: Tensor) -> Tensor:
        """Returns groups [out, groups, group] as they are kept."""
        return self.plain.dequantize(self.plain.quantize(grouped.flatten(1))).view_as(grouped)
