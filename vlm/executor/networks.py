"""What an executor calls of a model's torch modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor, nn

from vlm.config import ModelConfig
from vlm.errors import InputError
from vlm.layers.forward_batch import ForwardBatch
from vlm.layers.quant.w8a8 import rounds_rows
from vlm.ops.products.norms_ahead import norms_ahead

N = TypeVar("N")
P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class TextNetwork(Protocol):
    """An encoder of texts, or what it shares with a decoder."""

    @property
    def config(self) -> ModelConfig: ...

    def __call__(self, token_ids: Tensor, batch: ForwardBatch) -> Tensor:
        """Returns the hidden rows [n, hidden] of the ids [R] that the batch is to keep: all, where it does not say."""
        ...

    def modules(self) -> Iterator[nn.Module]: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...


class DecoderNetwork(TextNetwork, Protocol):
    """A decoder: its hidden rows become logits, and with cross-attention it keeps an encoder's output."""

    def logits(self, hidden: Tensor, batch: ForwardBatch) -> Tensor:
        """Returns [R, vocab] of hidden rows [R, hidden] of a batch."""
        ...

    def write_cross_kv(self, features: Tensor, batch: ForwardBatch) -> None:
        """Puts every layer's keys and values of an encoder's output [R, hidden] into the cache."""


class Network(Protocol[P, R]):
    """Any module, by what it takes and returns."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def modules(self) -> Iterator[nn.Module]: ...


def rounding_ahead(network: Network[P, R], device: torch.device) -> Callable[P, R]:
    """Returns a network's passes: where its products round their rows to 8 bits, norms and activations ahead of them
    end with that. Of others those of one row alone would not pay for the context."""
    if not rounds_rows(network.modules()):
        return network

    def forward(*args: P.args, **kwargs: P.kwargs) -> R:
        with norms_ahead(device, rounds=True):
            return network(*args, **kwargs)

    return forward


def parameters_of(network: TextNetwork) -> int:
    """Counts the numbers of a network's parameters."""
    return sum(x.numel() for x in network.parameters())


def required(network: N | None) -> N:
    """Returns a network that a request calls for. Raises InputError for a model that has none."""
    if network is None:
        raise InputError("this model's encoder does not take this kind of input.")
    return network
