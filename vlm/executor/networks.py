"""What an executor calls of a model's torch modules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeVar

from torch import Tensor, nn

from vlm.config import ModelConfig
from vlm.errors import InputError
from vlm.layers.forward_batch import ForwardBatch

N = TypeVar("N")


class TextNetwork(Protocol):
    """An encoder of texts, or what it shares with a decoder."""

    @property
    def config(self) -> ModelConfig: ...

    def __call__(self, token_ids: Tensor, batch: ForwardBatch) -> Tensor:
        """Returns the hidden rows [R, hidden] of the ids [R]."""
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


def required(network: N | None) -> N:
    """Returns a network that a request calls for. Raises InputError for a model that has none."""
    if network is None:
        raise InputError("this model's encoder does not take this kind of input.")
    return network
