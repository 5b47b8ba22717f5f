"""The affine layer of decoders."""

from __future__ import annotations

from torch import Tensor, nn

from vlm.ops.linear import linear


class Linear(nn.Linear):
    """nn.Linear on packed rows [R, in] -> [R, out]."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)
