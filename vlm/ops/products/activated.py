"""The activation of a feed-forward layer as an operation of its own, where no product ends with it."""

from __future__ import annotations

from torch import Tensor

from vlm.ops.activation import Activation, reference


def activated(x: Tensor, activation: Activation | None) -> Tensor:
    """Computes act(x) of x [..., F], or act(a) · b of [..., 2 F] -> [..., F]; None: x itself"""
    if activation is None:
        return x
    if x.is_cuda:
        from vlm.ops.kernels.activation import activated as kernel

        return kernel(x, activation)
    return reference(x, activation)
