"""What visual networks share: activations under Hugging Face's names, and the feed-forward layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlm.layers.context import ModelContext
from vlm.layers.linear import Linear


def quick_gelu(x: Tensor) -> Tensor:
    """Returns x · sigmoid(1.702 x), which is CLIP's."""
    return x * torch.sigmoid(1.702 * x)


def tanh_gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "quick_gelu": quick_gelu,
    "gelu": F.gelu,
    "gelu_python": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_python_tanh", "gelu_new", "gelu_fast", "gelu_accurate"), tanh_gelu),
}


class Mlp(nn.Module):
    """Computes fc2(activation(fc1(x))), under timm's names. `activation`: a name of ACTIVATIONS."""

    def __init__(self, width: int, inner: int, activation: str, *, context: ModelContext):
        super().__init__()
        self.fc1 = Linear(width, {"up": inner}, axis="column", context=context)
        self.fc2 = Linear(inner, width, axis="row", context=context)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        """x [..., width] -> the same"""
        return self.fc2(self.activation(self.fc1(x)))
