"""Weights and what they meet in 8 bits of floating point (e4m3): a scale an output channel, and one a row, found as the
rows come, or a static one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vlm.layers.quant.w8a8 import W8A8
from vlm.ops.products.w8a8 import rounded

FP8 = torch.float8_e4m3fn
MOST = torch.finfo(FP8).max


@dataclass(frozen=True)
class Fp8(W8A8):
    """Keeps e4m3 where W8A8 keeps whole numbers."""

    dtype: ClassVar[torch.dtype] = FP8

    def quantize(self, weight: Tensor) -> dict[str, Tensor]:
        values, scale = rounded(weight, FP8)
        return {"weight": values, "weight_scale": scale}
