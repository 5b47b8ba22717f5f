"""Gated activation: act(a) · b of the two halves of a row (Shazeer, arXiv:2002.05202)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


def reference(x: Tensor, activation: str) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return ACTIVATIONS[activation](a) * b


def gated(x: Tensor, activation: str) -> Tensor:
    """Computes act(a) · b of x [R, 2 F], the gate's half `a` first -> [R, F]"""
    if x.is_cuda:
        from vlm.ops.kernels.gated import gated as kernel

        return kernel(x, activation)
    return reference(x, activation)
