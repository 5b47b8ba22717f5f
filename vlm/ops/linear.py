"""Affine maps: the library's matrix product, and at one row in 16 bits a kernel that streams the weight."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, out_fp32: bool = False) -> Tensor:
    """Returns x weightᵀ + bias [..., N] of x [..., K], weight [N, K], bias [N]. `out_fp32`, for x [R, K] alone: in
    float16 the sums stay float32."""
    if x.is_cuda and x.dtype != torch.float32:
        if x.ndim == 2 and len(x) == 1:
            from vlm.ops.kernels.linear import linear as kernel

            return kernel(x, weight, bias, torch.float32 if out_fp32 else x.dtype)
        if out_fp32 and x.dtype == torch.float16:
            product = torch.mm(x, weight.t(), out_dtype=torch.float32)
            return product if bias is None else product + bias
    if out_fp32 and x.dtype == torch.float16:
        return F.linear(x.float(), weight.float(), None if bias is None else bias.float())
    return F.linear(x, weight, bias)
