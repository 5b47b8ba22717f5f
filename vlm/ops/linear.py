"""Affine maps: the library's matrix product, and kernels of ours for few rows in 16 bits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vlm.ops.activated import activated
from vlm.ops.activation import Activation

VECTOR = 8  # values of 16 bits in 16 bytes
MANY = 256  # rows from which on a copy of both sides costs less than it saves


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    out_fp32: bool = False,
    activation: Activation | None = None,
) -> Tensor:
    """Returns the activation of x weightᵀ + bias [..., N], x [..., K], weight [N, K], bias [N]. `out_fp32`, for x
    [R, K] alone: in float16 the sums stay float32."""
    # our kernels have no gradients
    if x.is_cuda and x.dtype != torch.float32 and x.ndim == 2 and not torch.is_grad_enabled():
        from vlm.ops.kernels import gemm
        from vlm.ops.kernels.linear import linear as one_row

        kernel = one_row if len(x) == 1 else gemm.linear if gemm.fits(x, weight, activation) else None
        if kernel is not None:
            return kernel(x, weight, bias, torch.float32 if out_fp32 else x.dtype, activation)
    return activated(_product(x, weight, bias, out_fp32), activation)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, out_fp32: bool) -> Tensor:
    if not out_fp32 or x.dtype != torch.float16:
        if bias is None and len(weight) > VECTOR and len(weight) % VECTOR and _has_vectors(x):
            return _in_whole_parts(*_in_whole_vectors(x, weight))
        return F.linear(*_in_whole_vectors(x, weight), bias)
    if x.is_cuda:
        product = torch.mm(x, weight.t(), out_dtype=torch.float32)
        return product if bias is None else product + bias
    return F.linear(x.float(), weight.float(), None if bias is None else bias.float())


def _in_whole_vectors(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Returns both with zeros behind their rows, where many rows of 16 bits are no multiple of 16 bytes: the library
    takes a quarter of the time for those that are (3,420 values, Qwen2.5-VL's feed-forward layer)."""
    wide = _whole(x.shape[-1])
    if wide == x.shape[-1] or not _has_vectors(x) or len(x) < MANY:
        return x, weight
    from vlm.ops.kernels.widen import widened

    return widened(x, wide), widened(weight, wide)


def _in_whole_parts(x: Tensor, weight: Tensor) -> Tensor:
    """Returns their product, made of that with a multiple of VECTOR outputs and that with the rest, in rows of whole
    vectors: for other numbers of outputs the library has slow kernels (84 µs of a step of 0.85 ms of 32 rows of GPT-2
    medium on an H200 are its head, of 50,257)."""
    whole = len(weight) // VECTOR * VECTOR
    rows = torch.empty(len(x), _whole(len(weight)), dtype=x.dtype, device=x.device)
    for outputs in (slice(whole), slice(whole, len(weight))):
        torch.mm(x, weight[outputs].t(), out=rows[:, outputs])
    return rows[:, : len(weight)]


def _has_vectors(x: Tensor) -> bool:
    """Tells whether 16 bytes are VECTOR values of rows on a GPU, and no gradients are wanted."""
    return x.is_cuda and x.ndim == 2 and x.element_size() == 2 and not torch.is_grad_enabled()


def _whole(size: int) -> int:
    return -(-size // VECTOR) * VECTOR
