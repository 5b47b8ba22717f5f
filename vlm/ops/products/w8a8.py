"""Affine maps by weights of 8 bits that meet rows which are rounded to 8 bits, too."""

from __future__ import annotations

import torch
from torch import Tensor

from vlm.ops.activation import Activation
from vlm.ops.products.activated import activated
from vlm.ops.products.quantized_linear import linear8

LEAST = {
    torch.int8: (-127, -128),
    torch.float8_e4m3fn: (-448, -448),
}  # of scales found as rows come, and of static ones
MOST = {torch.int8: 127, torch.float8_e4m3fn: 448}


def w8a8(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    static_scale: Tensor | None = None,
    out_fp32: bool = False,
    activation: Activation | None = None,
) -> Tensor:
    """Returns the activation of x (weight · weight_scale)ᵀ + bias [..., N], x [..., K], whose rows are rounded to the
    type of the weight: by `static_scale` [1] or each by its own largest value.

    weight [N, K] int8 or e4m3, weight_scale [N, 1] float32, bias [N]; `out_fp32`: of float16 the result is float32.
    """
    rows = x.reshape(-1, x.shape[-1])
    if x.is_cuda and x.dtype != torch.float32 and len(rows) < rounded_from(x.device):
        return linear8(x, weight, weight_scale, bias, out_fp32=out_fp32, activation=activation)
    values, scale = rounded(rows, weight.dtype, static_scale)
    y = product(values, scale, weight, weight_scale, torch.float32 if out_fp32 else x.dtype, bias, activation)
    return y.view(*x.shape[:-1], y.shape[1])


def rounded_from(device: torch.device) -> int:
    """Returns from how many rows on they are rounded on a GPU: fewer stay in the computing type, as rounding them takes
    longer than it saves."""
    from vlm.ops.kernels import gemm

    return 2 if gemm.is_there(device) else 9


def rounded(rows: Tensor, dtype: torch.dtype, static_scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Rounds [R, K] -> the type [R, K] and the rows' scales [R, 1] float32: all `static_scale` [1], or each its own."""
    least, most = LEAST[dtype][static_scale is not None], MOST[dtype]
    if rows.is_cuda:
        from vlm.ops.kernels.w8a8 import rounded as kernel

        return kernel(rows.contiguous(), dtype, static_scale, least, most)
    rows = rows.float()
    if static_scale is None:
        scale = rows.abs().amax(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny * most) / most
    else:
        scale = static_scale.expand(len(rows), 1).contiguous()
    scaled = rows / scale
    return (scaled if dtype.is_floating_point else scaled.round()).clamp(least, most).to(dtype), scale


def product(
    x: Tensor,
    scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    dtype: torch.dtype,
    bias: Tensor | None = None,
    activation: Activation | None = None,
) -> Tensor:
    """Returns the activation of (x · scale) (weight · weight_scale)ᵀ + bias [R, N] of x [R, K] and weight [N, K] of 8
    bits; off CUDA sums of 2^24 and more are rounded."""
    if x.is_cuda:
        from vlm.ops.kernels import gemm
        from vlm.ops.kernels.w8a8 import product as kernel

        if gemm.fits(x, weight, activation, weight_scale):
            return gemm.linear(x, weight, bias, dtype, activation, scales=(scale, weight_scale))
        return activated(kernel(x, scale, weight, weight_scale, dtype, bias), activation)
    y = (x.float() @ weight.float().t()) * scale * weight_scale.t()
    return activated((y if bias is None else y + bias.float()).to(dtype), activation)
