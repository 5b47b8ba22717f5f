"""Activations of feed-forward layers, plain and gated: act(a) · b of the two halves of a row (Shazeer,
arXiv:2002.05202)."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from vlm.errors import ConfigError, listed

ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * (1.702 * x).sigmoid(),  # CLIP's
    "relu": F.relu,
    "silu": F.silu,
}


@dataclass(frozen=True)
class Activation:
    """What is done to [R, F], or where it is gated to [R, 2 F], the gate's half first. `name`: one of ACTIVATIONS."""

    name: str
    gated: bool = False

    def __post_init__(self) -> None:
        if self.name not in ACTIVATIONS:
            raise ConfigError(f"activation is {self.name!r}; it must be one of {listed(ACTIVATIONS)}.")

    def width(self, outputs: int) -> int:
        """Returns how many of so many outputs are left."""
        return outputs // 2 if self.gated else outputs


def reference(x: Tensor, activation: Activation) -> Tensor:
    act = ACTIVATIONS[activation.name]
    if not activation.gated:
        return act(x)
    a, b = x.chunk(2, dim=-1)
    return act(a) * b
