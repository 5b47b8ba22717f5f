"""The affine layer of language models."""

from __future__ import annotations

from torch import Tensor, nn

from vlm.ops.linear import linear


class Linear(nn.Linear):
    """nn.Linear on packed rows [R, in] -> [R, out]; `out_fp32`: in float16 the result is float32."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True, out_fp32: bool = False):
        super().__init__(inputs, outputs, bias=bias)
        self.out_fp32 = out_fp32

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias, self.out_fp32)
