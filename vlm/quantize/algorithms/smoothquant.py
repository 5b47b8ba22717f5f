"""SmoothQuant (Xiao et al., arXiv:2211.10438): outliers of the inputs move into the weights, then both have 8 bits.

The scale is max|x|^alpha / max|w|^(1 - alpha).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vlm.quantize.algorithms.input_scaling import SMALLEST, InputScaling
from vlm.quantize.statistics import Statistics

ALPHAS = tuple(step / 10 for step in range(1, 10))


@dataclass(frozen=True)
class SmoothQuant(InputScaling):
    """`alpha` None: of each layer the best of a grid, no smoothing included."""

    alpha: float | None = None

    def scales(self, weight: Tensor, statistics: Statistics) -> Iterator[Tensor]:
        if self.alpha is None:
            yield torch.ones_like(statistics.max_abs)
        for alpha in ALPHAS if self.alpha is None else (self.alpha,):
            inputs = statistics.max_abs.clamp(min=SMALLEST) ** alpha
            yield inputs / weight.abs().amax(0).clamp(min=SMALLEST) ** (1 - alpha)
