"""LoRA: adapters that add a product of two narrow matrices to the results of Linear layers, part by part."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vlm.layers.adapters.base import AdapterRoom, BaseLayer, Move, Product
from vlm.ops.layouts.lora_matrices import LoraMatrices
from vlm.ops.products.add_lora import add_lora


class LoraWeights(NamedTuple):
    """What one adapter adds to a Linear, x Aᵀ Bᵀ, its scale within B."""

    a: Tensor  # [rank, in]
    b: Tensor  # [out, rank]

    @property
    def rank(self) -> int:
        return self.a.shape[0]

    @property
    def commutes_with_scales(self) -> bool:
        return False

    def placed(self, shape: tuple[int, int], move: Move) -> list[LoraWeights]:
        if (own := (len(self.b), self.a.shape[1])) != shape:
            raise ValueError(f"is {list(own)} and should be {list(shape)}")
        return [LoraWeights(self.a, b) for b in move(self.b)]

    def part(self, rows: slice, columns: slice | Tensor) -> LoraWeights | None:
        return LoraWeights(self.a[:, columns], self.b[rows]) if self.b[rows].any() else None

    def beside(self, base: BaseLayer) -> list[LoraWeights]:
        return [self]

    def fits(self, dtype: torch.dtype) -> bool:
        return all(bool(x.to(dtype).isfinite().all()) for x in self)

    def to(self, device: torch.device, dtype: torch.dtype) -> LoraWeights:
        return LoraWeights(self.a.to(device, dtype), self.b.to(device, dtype))

    def merged(self, weight: Tensor) -> Tensor:
        return weight + self.b @ self.a

    def merged_bias(self, bias: Tensor) -> Tensor:
        return bias

    def bank(self, in_features: int, part_sizes: Mapping[str, int], room: AdapterRoom) -> LoraBank:
        return LoraBank(in_features, part_sizes, room)


class LoraBank(nn.Module):
    """Holds the matrices of all adapters for one Linear. A part of its outputs has room for them once one changes it:
    what no adapter changes costs nothing."""

    adds = True

    def __init__(self, in_features: int, part_sizes: Mapping[str, int], room: AdapterRoom):
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

    def forward(self, x: Tensor, adapter_ids: Tensor, product: Product) -> Tensor:
        return product(x) if self._matrices is None else add_lora(product, x, adapter_ids, self._matrices)
