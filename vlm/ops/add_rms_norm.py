"""Residual addition and RMS norm in one pass (Zhang and Sennrich, arXiv:1910.07467)."""

from __future__ import annotations

import torch
from torch import Tensor


def reference(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    stream = x if delta is None else (x.float() + delta.float()).to(x.dtype)
    exact = stream.float()
    normal = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + eps)
    return stream, (normal * weight.float()).to(weight.dtype)


def add_rms_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """s = x + delta in x's type (the stream may be wider than what flows off it); returns s and its norm in weight's
    type, each [..., C], the statistics in float32."""
    if x.is_cuda:
        from vlm.ops.kernels.add_norm import add_norm as kernel

        return kernel(x, delta, weight, None, eps)
    return reference(x, delta, weight, eps)
