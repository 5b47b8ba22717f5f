"""Weights of whole numbers in groups, w = (level - zero) · scale: the parameters of our methods for them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vlm.convert.quantized.layer import Read
from vlm.ops.layouts.int4_packing import packed4

ZERO_LEVEL = {4: 8, 8: 128}  # of symmetric weights
ROUNDED_AGAIN = "its weights of 8 bits are rounded again, to int8 with a scale for each channel"


@dataclass(frozen=True)
class Integers:
    """How levels of 4 or 8 bits are grouped; `group_size` None: a scale a channel."""

    bits: int
    symmetric: bool
    group_size: int | None

    @property
    def exact(self) -> bool:
        """Says whether a method of ours keeps the same values."""
        return self.bits == 4 or (self.symmetric and self.group_size is None)

    @property
    def method(self) -> str:
        return "int8" if self.bits == 8 else "int4" if self.symmetric else "int4-asymmetric"

    def parameters(self, levels: Read, scale: Read, zero: Read, order: Tensor | None = None) -> dict[str, Read]:
        """Returns the readers of our parameters, of those of levels uint8 [out, in], scale float32 and zero uint8
        [out, groups]; `order` int32 [in]: in which inputs of a group lie side by side."""

        def sorted_levels() -> Tensor:
            return levels() if order is None else levels()[:, order.long()]

        def weight() -> Tensor:
            grouped = sorted_levels().float().unflatten(1, (scale().shape[1], -1))
            values = ((grouped - zero().float()[..., None]) * scale()[..., None]).flatten(1)
            return values if order is None else values[:, order.long().argsort()]

        if not self.exact:
            return {"weight": weight}
        if self.bits == 8:
            return {"weight": lambda: (levels().int() - ZERO_LEVEL[8]).to(torch.int8), "weight_scale": scale}
        readers: dict[str, Read] = {"weight_packed": lambda: packed4(sorted_levels()), "weight_scale": scale}
        readers |= {} if self.symmetric else {"weight_zero": zero}
        return readers if order is None else readers | {"input_order": lambda: order}
