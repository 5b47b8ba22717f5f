"""LoRA: adapters that add a product of two narrow matrices to the results of Linear layers, part by part."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vlm.config import RuntimeConfig
from vlm.ops.add_lora import add_lora
from vlm.ops.lora_matrices import LoraMatrices


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
        self.parts: list[str] = []  # those that there is room for, in their order
        self._matrices: LoraMatrices | None = None

    def clear(self, slot: int) -> None:
        """Forgets what lies in a slot."""
        if self._matrices is not None:
            self._matrices.a[:, slot], self._matrices.b[slot] = 0.0, 0.0

    def put(self, slot: int, part: str, weights: LoraWeights) -> None:
        """Takes what an adapter adds to a part, on the device and in the type that the layer computes in."""
        matrices = self._with_room_for(part, like=weights.a)
        a, b, _ = list(matrices.parts())[self.parts.index(part)]
        a[slot, : weights.rank] = weights.a
        b[slot, : weights.rank, : len(weights.b)] = weights.b.T

    def _with_room_for(self, part: str, like: Tensor) -> LoraMatrices:
        if part in self.parts and self._matrices is not None:
            return self._matrices
        columns, zeros = self._columns[part], like.new_zeros
        a = zeros(1, self.room.max_loras, self.room.max_rank, self.in_features)
        b = zeros(self.room.max_loras, self.room.max_rank, columns.stop - columns.start)
        if self._matrices is not None:
            a, b = torch.cat((self._matrices.a, a)), torch.cat((self._matrices.b, b), 2)
        self.parts.append(part)
        self._matrices = LoraMatrices(a, b, tuple(self._columns[each] for each in self.parts))
        return self._matrices

    def forward(self, x: Tensor, y: Tensor, adapter_ids: Tensor) -> Tensor:
        if self._matrices is not None:
            add_lora(y, x, adapter_ids, self._matrices)
        return y
