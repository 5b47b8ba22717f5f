"""What a Linear asks of adapters: small changes of a network, of which each row of a batch names one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from vlm.config import RuntimeConfig

Product = Callable[[Tensor], Tensor]  # what a Linear computes of x [R, in]: [R, out]
Move = Callable[
    [Tensor], list[Tensor]
]  # values [out, k] of a weight's rows -> those of each layer that has some of them


class BaseLayer(Protocol):
    """What a process has of the layer beneath an adapter, whose changes may depend on it."""

    def bias(self, count: int) -> Tensor | None:
        """Returns the bias [count] float32 that is added here, zeros in rows of other ranks; None: there is none."""
        ...

    def row_norms(self, a: Tensor, b: Tensor, rows: Tensor) -> Tensor:
        """Returns the norms [out] float32 of the rows of W + b a, a [rank, in], b [out, rank], W as it is kept; rows
        [out] bool: those that are asked for. Others, and those of other ranks, may be anything but 0."""
        ...


class AdapterWeights(Protocol):
    """What one adapter changes of a layer: an object of its kind."""

    @property
    def rank(self) -> int:
        """Returns the rank that a bank must have room for, 0 in kinds without one."""
        ...

    @property
    def commutes_with_scales(self) -> bool:
        """Says whether it changes the same where the channels of what a layer reads or returns are scaled."""
        ...

    def placed(self, shape: tuple[int, int], move: Move) -> Sequence[AdapterWeights]:
        """Returns what is changed of each layer that a weight [out, in] of this shape becomes a part of; the rows of
        other weights stay as they are. Raises ValueError for an adapter of another shape."""
        ...

    def part(self, rows: slice, columns: slice | Tensor) -> AdapterWeights | None:
        """Returns what is changed of these rows, whose inputs are these columns: some of them, or the places of all in
        another order; None where that is nothing."""
        ...

    def beside(self, base: BaseLayer) -> Sequence[BankWeights]:
        """Returns the same as banks hold it, beside this layer."""
        ...

    def merged(self, weight: Tensor) -> Tensor:
        """Returns a weight [out, in], in float32, with the change in it. Raises ValueError where there is none."""
        ...

    def merged_bias(self, bias: Tensor) -> Tensor:
        """Returns a bias [out], in float32, with the change in it."""
        ...


class BankWeights(AdapterWeights, Protocol):
    """What a bank takes of an adapter."""

    def part(self, rows: slice, columns: slice | Tensor) -> BankWeights | None: ...

    def fits(self, dtype: torch.dtype) -> bool:
        """Says whether all of its values are finite in a layer that computes in this type: in a product with those of
        other rows, which counts for nothing, what is not becomes NaN."""
        ...

    def to(self, device: torch.device, dtype: torch.dtype) -> BankWeights: ...

    def bank(self, in_features: int, part_sizes: Mapping[str, int], room: AdapterRoom) -> KindBank:
        """Returns what holds changes of this kind for one Linear; it is empty."""
        ...


class KindBank(Protocol):
    """Holds what adapters of one kind change of a Linear, each in its slot."""

    @property
    def adds(self) -> bool:
        """Says whether it adds to a result, which banks that do not have changed before."""
        ...

    @property
    def parts(self) -> Sequence[Any]:
        """Returns what there is room for: it grows when adapters change what none has changed."""
        ...

    def clear(self, slot: int) -> None:
        """Forgets what lies in a slot."""
        ...

    def put(self, slot: int, part: str, weights: Any) -> None:
        """Takes what an adapter changes of a part, on the device and in the type that the layer computes in."""
        ...

    def __call__(self, x: Tensor, adapter_ids: Tensor, product: Product) -> Tensor:
        """Computes the product of x [R, in], changed for each row by its adapter."""
        ...


# by the path of a Linear: what is changed of it, by each of the modules that it is made of
Layers = Mapping[str, Sequence[AdapterWeights]]
BankLayers = Mapping[str, Sequence[BankWeights]]


def rank_of(adapter: Mapping[str, Layers]) -> int:
    """Returns the highest rank of an adapter, of whose networks this is what it changes of them; 0: it has none."""
    return max((each.rank for layers in adapter.values() for changes in layers.values() for each in changes), default=0)


@dataclass(frozen=True)
class AdapterRoom:
    """Makes the banks of so many adapters, none of a higher rank. One object serves all layers."""

    max_loras: int
    max_rank: int

    @classmethod
    def from_runtime(cls, runtime: RuntimeConfig) -> AdapterRoom | None:
        """Returns the room that a runtime has for adapters; None where it has none."""
        count, rank = runtime.max_loras, runtime.max_lora_rank
        return None if count is None or rank is None else cls(count, rank)

    def bank(self, in_features: int, part_sizes: Mapping[str, int]) -> AdapterBank:
        """Returns what a Linear of these sizes is to hold."""
        return AdapterBank(in_features, part_sizes, self)


class AdapterBank(nn.Module):
    """Holds what all adapters change of one Linear. A kind of them has room once an adapter of it changes the layer:
    what none changes costs nothing."""

    def __init__(self, in_features: int, part_sizes: Mapping[str, int], room: AdapterRoom):
        super().__init__()
        self.in_features, self.part_sizes, self.room = in_features, part_sizes, room
        self._kinds: dict[type[BankWeights], KindBank] = {}  # those that add come last

    @property
    def is_empty(self) -> bool:
        """Says whether no adapter has changed the layer."""
        return not self._kinds

    @property
    def parts(self) -> list[tuple[type[BankWeights], Any]]:
        """Returns what there is room for, of each kind."""
        return [(kind, part) for kind, bank in self._kinds.items() for part in bank.parts]

    def clear(self, slot: int) -> None:
        """Forgets what lies in a slot, of whichever kind."""
        for bank in self._kinds.values():
            bank.clear(slot)

    def put(self, slot: int, part: str, weights: BankWeights) -> None:
        """Takes what an adapter changes of a part, on the device and in the type that the layer computes in."""
        kind = type(weights)
        if kind not in self._kinds:
            kinds = self._kinds | {kind: weights.bank(self.in_features, self.part_sizes, self.room)}
            self._kinds = dict(sorted(kinds.items(), key=lambda each: each[1].adds))
        self._kinds[kind].put(slot, part, weights)

    def forward(self, x: Tensor, adapter_ids: Tensor, product: Product) -> Tensor:
        """Computes the product of x [R, in], changed for each row by its adapter, adapter_ids [R] int32 being their
        slots; NO_ADAPTER changes nothing."""
        for bank in self._kinds.values():
            product = functools.partial(bank, adapter_ids=adapter_ids, product=product)
        return product(x)
