"""Affine maps by weights of 8 and 4 bits, what they meet in the computing type."""

from __future__ import annotations

import torch
from torch import Tensor

from vlm.ops.activation import Activation
from vlm.ops.layouts.int4_packing import chunk_of, unpacked4
from vlm.ops.products.linear import linear

MOST_ROWS = 128  # of more the weight is unpacked once, for the library's product


def linear8(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    out_fp32: bool = False,
    activation: Activation | None = None,
) -> Tensor:
    """Returns the activation of x (weight · scale)ᵀ + bias [..., N], x [..., K], weight [N, K] int8 or e4m3, scale
    [N, 1] float32, bias [N]. `out_fp32`: of float16 the result is float32."""
    if _few(x):
        from vlm.ops.kernels.quantized_linear import linear8 as kernel

        y = kernel(_rows(x), weight, scale, bias, _result(x, out_fp32=out_fp32), activation)
        return y.view(*x.shape[:-1], y.shape[1])
    return linear(x, _unpacked8(weight, scale, x.dtype), bias, out_fp32=out_fp32, activation=activation)


def linear4(
    x: Tensor,
    packed: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    out_fp32: bool = False,
    activation: Activation | None = None,
) -> Tensor:
    """Returns the activation of x Wᵀ + bias [..., N], x [..., K] and W = (level - zero) · scale, as `unpacked4` has
    it."""
    if _few(x) and linear4_fits(x.shape[-1], scale.shape[1]):
        from vlm.ops.kernels.quantized_linear import linear4 as kernel

        y = kernel(_rows(x), packed, scale, zero, bias, _result(x, out_fp32=out_fp32), activation)
        return y.view(*x.shape[:-1], y.shape[1])
    if packed.is_cuda:
        from vlm.ops.kernels.unpack import unpacked4 as unpack

        return linear(x, unpack(packed, scale, zero, x.dtype), bias, out_fp32=out_fp32, activation=activation)
    return linear(x, unpacked4(packed, scale, zero).to(x.dtype), bias, out_fp32=out_fp32, activation=activation)


def linear4_fits(inputs: int, groups: int) -> bool:
    """Tells whether the kernel of few rows takes groups of this size: a quarter of a chunk has one scale."""
    chunk, group = chunk_of(inputs), inputs // groups
    return chunk >= 64 and (group % chunk == 0 or group in (chunk // 4, chunk // 2))


def _unpacked8(weight: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    if not weight.is_cuda:
        return (weight.float() * scale).to(dtype)
    from vlm.ops.kernels.unpack import unpacked8

    return unpacked8(weight, scale, dtype)


def _few(x: Tensor) -> bool:
    return x.is_cuda and x.numel() // x.shape[-1] <= MOST_ROWS


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]).contiguous()


def _result(x: Tensor, *, out_fp32: bool) -> torch.dtype:
    return torch.float32 if out_fp32 and x.dtype == torch.float16 else x.dtype
