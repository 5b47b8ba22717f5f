"""Residual addition and RMS norm in one pass (Zhang and Sennrich, arXiv:1910.07467)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("vlm::rms_norm", mutates_args=(), schema="(Tensor x, Tensor weight, float eps) -> Tensor")
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Returns the norm of x [..., C], of its shape and type, weight [C] of x's type: one node of an exported graph."""
    return reference(x, None, weight, eps)[1]


@rms_norm.register_fake
def _(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch.empty_like(x)


def lowerings() -> dict[Any, Callable[..., Any]]:
    """Returns the ONNX node of `rms_norm`."""
    from onnxscript.values import Opset

    def norm(x, weight, eps: float):
        return Opset("", 24).RMSNormalization(x, weight, axis=-1, epsilon=eps)

    return {torch.ops.vlm.rms_norm.default: norm}


def exported(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Computes `reference` for a graph: the norm is one node."""
    stream = x if delta is None else (x.float() + delta.float()).to(x.dtype)
    return stream, rms_norm(stream, weight.to(stream.dtype), eps).to(weight.dtype)


def reference(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    stream = x if delta is None else (x.float() + delta.float()).to(x.dtype)
    exact = stream.float()
    normal = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + eps)
    return stream, (normal * weight.float()).to(weight.dtype)


def add_rms_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Returns s = x + delta in x's type (the stream may be wider than what flows off it) and its norm in weight's type,
    each [..., C], the statistics in float32."""
    if x.is_cuda:
        from vlm.ops.kernels.add_norm import add_norm as kernel

        return kernel(x, delta, weight, None, eps)
    if torch.compiler.is_exporting():
        return exported(x, delta, weight, eps)
    return reference(x, delta, weight, eps)
