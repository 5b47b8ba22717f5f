"""The affine layer of language models."""

from __future__ import annotations

from torch import Tensor, nn

from vlm.ops.linear import linear


class Linear(nn.Linear):
    """nn.Linear on packed rows [R, in] -> [R, out]; `wide`: in float16 the result is float32."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True, wide: bool = False):
        super().__init__(inputs, outputs, bias=bias)
        self.wide = wide

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias, self.wide)
