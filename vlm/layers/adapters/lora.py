"""LoRA: adapters that add a product of two narrow matrices to the results of Linear layers, part by part."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from vlm.config import RuntimeConfig
from vlm.ops.add_lora import add_lora


class LoraWeights(NamedTuple):
    """What one adapter adds to a Linear, x Aᵀ Bᵀ, its scale within B."""

    a: Tensor  # [rank, in]
    b: Tensor  # [out, rank]

    @property
    def rank(self) -> int:
        return self.a.shape[0]


# by the path of a Linear: what is added to the whole of it, each to some of its parts, with zeros for the others
Layers = Mapping[str, list[LoraWeights]]


def rank_of(adapter: Mapping[str, Layers]) -> int:
    """Returns the highest rank of an adapter, of whose networks this is what it adds to them."""
    return max((each.rank for layers in adapter.values() for added in layers.values() for each in added), default=1)


@dataclass(frozen=True)
class Lora:
    """Makes the banks of so many adapters, none of a higher rank."""

    max_loras: int
    max_rank: int

    @classmethod
    def from_runtime(cls, runtime: RuntimeConfig) -> Lora | None:
        """Returns the room that a runtime has for adapters; None where it has none."""
        count, rank = runtime.max_loras, runtime.max_lora_rank
        return None if count is None or rank is None else cls(count, rank)

    def bank(self, in_features: int, part_sizes: Mapping[str, int]) -> LoraBank:
        return LoraBank(in_features, part_sizes, self)


class LoraBank(nn.Module):
    """Holds the matrices of all adapters for one Linear. A part of its outputs has room for them once one changes it:
    what no adapter changes costs nothing."""

    def __init__(self, in_features: int, part_sizes: Mapping[str, int], room: Lora):
        super().__init__()
        self.in_features, self.room = in_features, room
        bounds = itertools.pairwise(itertools.accumulate(part_sizes.values(), initial=0))
        self._columns = {part: slice(*place) for part, place in zip(part_sizes, bounds, strict=True)}
        self._weights: dict[str, tuple[Tensor, Tensor]] = {}  # by part: a [n, max_rank, in], b [n, max_rank, out]

    @property
    def parts(self) -> set[str]:
        """Returns the parts that there is room for."""
        return set(self._weights)

    def clear(self, slot: int) -> None:
        """Forgets what lies in a slot."""
        for matrices in self._weights.values():
            for each in matrices:
                each[slot] = 0.0

    def put(self, slot: int, part: str, weights: LoraWeights) -> None:
        """Takes what an adapter adds to a part, on the device and in the type that the layer computes in."""
        if part not in self._weights:
            shape, columns = (self.room.max_loras, self.room.max_rank), self._columns[part]
            zeros = weights.a.new_zeros
            self._weights[part] = zeros(*shape, self.in_features), zeros(*shape, columns.stop - columns.start)
        a, b = self._weights[part]
        a[slot, : weights.rank] = weights.a
        b[slot, : weights.rank, : len(weights.b)] = weights.b.T

    def forward(self, x: Tensor, y: Tensor, adapter_ids: Tensor) -> Tensor:
        for part, (a, b) in self._weights.items():
            add_lora(y[:, self._columns[part]], x, adapter_ids, a=a, b=b)
        return y
