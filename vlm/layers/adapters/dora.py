"""DoRA: a LoRA whose sum with the weight has rows of lengths of its own (https://arxiv.org/abs/2402.09353).

A row of the adapted weight is m (w + b a) / |w + b a|. The lengths are found once, when an adapter is loaded:
after that it is a scale m / |w + b a| of the layer's outputs, but not of its bias, and a LoRA whose b is scaled alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vlm.layers.adapters.base import BankWeights, BaseLayer, Move
from vlm.layers.adapters.ia3 import Ia3Weights
from vlm.layers.adapters.lora import LoraWeights


@dataclass(frozen=True)
class DoraWeights:
    """What one adapter makes of a Linear's weight: its direction changes by a LoRA, its rows get lengths."""

    lora: LoraWeights
    magnitude: Tensor  # [out]
    rows: Tensor  # [out] bool: those that it changes

    @property
    def rank(self) -> int:
        return self.lora.rank

    @property
    def commutes_with_scales(self) -> bool:
        return False

    def placed(self, shape: tuple[int, int], move: Move) -> list[DoraWeights]:
        loras = self.lora.placed(shape, move)
        moved = move(torch.stack((self.rows.float(), self.magnitude), 1))
        return [DoraWeights(lora, each[:, 1], each[:, 0] != 0) for lora, each in zip(loras, moved, strict=True)]

    def part(self, rows: slice, columns: slice | Tensor) -> DoraWeights | None:
        if not self.rows[rows].any():
            return None
        lora = LoraWeights(self.lora.a[:, columns], self.lora.b[rows])
        return DoraWeights(lora, self.magnitude[rows], self.rows[rows])

    def beside(self, base: BaseLayer) -> list[BankWeights]:
        scales = self._scales(base.row_norms(self.lora.a, self.lora.b, self.rows))
        shifts = None if (bias := base.bias(len(scales))) is None else (1.0 - scales) * bias
        scaled = LoraWeights(self.lora.a, self.lora.b * scales[:, None])
        return [Ia3Weights(scales, of_inputs=False, shifts=shifts), scaled]

    def merged(self, weight: Tensor) -> Tensor:
        directions = self.lora.merged(weight)
        norms = directions.norm(dim=1)
        if norms[self.rows].eq(0).any():
            raise ValueError("has rows of zeros together with its weight, which have no direction")
        return directions * self._scales(norms)[:, None]

    def merged_bias(self, bias: Tensor) -> Tensor:
        return bias

    def _scales(self, norms: Tensor) -> Tensor:
        return (self.magnitude / norms).where(self.rows, 1.0)
