"""Affine maps: the library's matrix product, and kernels of ours for few rows in 16 bits."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from vlm.ops.activation import Activation
from vlm.ops.layouts.padded_rows import VECTOR, with_padding
from vlm.ops.products.activated import activated

MANY = 256  # rows from which on a copy of both sides costs less than it saves


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    out_fp32: bool = False,
    activation: Activation | None = None,
) -> Tensor:
    """Returns the activation of x weightᵀ + bias [..., N], x [..., K], weight [N, K], bias [N]. `out_fp32`: in float16
    the sums stay float32."""
    if x.is_cuda and x.ndim > 2:  # the same kernels, and ends of the library's products, for rows that lie in images
        return linear(x.flatten(0, -2), weight, bias, out_fp32=out_fp32, activation=activation).unflatten(
            0, x.shape[:-1]
        )
    wide, wide_bias = _with_padding(weight, bias)
    if len(wide) > len(weight) and len(x) > 1 and activation is None:  # results are a view of wider rows
        return linear(x, wide, wide_bias, out_fp32=out_fp32)[..., : len(weight)]
    # our kernels have no gradients
    if x.is_cuda and x.dtype != torch.float32 and not torch.is_grad_enabled():
        from vlm.ops.kernels import gemm
        from vlm.ops.kernels.linear import linear as one_row

        kernel = one_row if len(x) == 1 else gemm.linear if gemm.fits(x, weight, activation) else None
        if kernel is not None:
            return kernel(x, weight, bias, torch.float32 if out_fp32 else x.dtype, activation)
    if activation is not None and _ends_with(activation, x):
        own = _no_bias(len(weight), x.dtype, x.device) if bias is None else bias
        return torch.ops.aten._addmm_activation(own, x, weight.t(), use_gelu=activation.name == "gelu_new")
    return activated(_library(x, weight, bias, out_fp32=out_fp32), activation)


def _ends_with(activation: Activation, x: Tensor) -> bool:
    """Tells whether the library's product ends with an activation: its GELU is that of tanh on CUDA."""
    is_known = activation.name in ("gelu_new", "relu") and not activation.gated
    is_16_bit = x.is_cuda and x.element_size() == 2 and x.shape[1] % VECTOR == 0
    return is_known and is_16_bit and not torch.is_grad_enabled()


@functools.cache
def _no_bias(width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns zeros: the library's product ends with an activation where it has a bias."""
    return torch.zeros(width, dtype=dtype, device=device)


def _with_padding(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Returns both with the zeros behind them, where there are as many behind both."""
    wide, wide_bias = with_padding(weight), None if bias is None else with_padding(bias)
    return (wide, wide_bias) if wide_bias is None or len(wide_bias) == len(wide) else (weight, bias)


def _library(x: Tensor, weight: Tensor, bias: Tensor | None, *, out_fp32: bool) -> Tensor:
    if not out_fp32 or x.dtype != torch.float16:
        return F.linear(*_in_whole_vectors(x, weight), bias)
    if x.is_cuda:
        product = torch.mm(x, weight.t(), out_dtype=torch.float32)
        return product if bias is None else product + bias
    return F.linear(x.float(), weight.float(), None if bias is None else bias.float())


def _in_whole_vectors(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Returns both with zeros behind their rows, where many rows of 16 bits are no multiple of 16 bytes: the library
    takes a quarter of the time for those that are (3,420 values, Qwen2.5-VL's feed-forward layer)."""
    wide = -(-x.shape[-1] // VECTOR) * VECTOR
    has_many = x.is_cuda and len(x) >= MANY and x.element_size() == 2
    if wide == x.shape[-1] or not has_many or torch.is_grad_enabled():
        return x, weight
    from vlm.ops.kernels.widen import widened

    return widened(x, wide), widened(weight, wide)
