"""Residual addition and layer norm in one pass."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def reference(x: Tensor, delta: Tensor | None, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    stream = x if delta is None else (x + delta).to(x.dtype)
    normal = F.layer_norm(stream, (x.shape[-1],), weight.to(x.dtype), bias.to(x.dtype), eps)
    return stream, normal.to(weight.dtype)


def add_layer_norm(
    x: Tensor, delta: Tensor | None, weight: Tensor, bias: Tensor, eps: float, *, keeps_sum: bool = True
) -> tuple[Tensor, Tensor]:
    """Returns s = x + delta in x's type (the stream may be wider than what flows off it) and its layer norm in weight's
    type, each [..., C], the statistics in float32. Where nobody reads the sum, `keeps_sum` False, something else may
    take its place."""
    if x.is_cuda:
        from vlm.ops.kernels.add_norm import add_norm as kernel

        return kernel(x, delta, weight, bias, eps, keeps_sum)
    return reference(x, delta, weight, bias, eps)
