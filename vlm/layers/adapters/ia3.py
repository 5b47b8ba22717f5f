"""(IA)³: adapters that scale what goes into Linear layers or what comes out of them (https://arxiv.org/abs/2205.05638)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vlm.layers.adapters.base import AdapterRoom, BaseLayer, Move, Product
from vlm.ops.products.scale_rows import scale_rows


@dataclass(frozen=True)
class Ia3Weights:
    """What one adapter scales of a Linear: its outputs, bias included, or its inputs. DoRAs scale outputs, too."""

    scales: Tensor  # [out], or [in] where `of_inputs`
    of_inputs: bool
    rows: Tensor | None = None  # [out] bool: the outputs whose inputs are scaled, None: all
    shifts: Tensor | None = None  # [out]: what is added to scaled outputs, None: nothing

    @property
    def rank(self) -> int:
        return 0

    @property
    def commutes_with_scales(self) -> bool:
        return True  # a factor for each channel is all that it is

    def placed(self, shape: tuple[int, int], move: Move) -> list[Ia3Weights]:
        if (size := shape[self.of_inputs]) != len(self.scales):
            raise ValueError(f"scales {len(self.scales)} {'inputs' if self.of_inputs else 'outputs'} and should {size}")
        is_own = torch.ones(shape[0], 1)
        if self.of_inputs:
            return [replace(self, rows=rows[:, 0] != 0) for rows in move(is_own)]
        moved = move(torch.cat((is_own, self.scales[:, None]), 1))
        return [replace(self, scales=values[:, 1].where(values[:, 0] != 0, 1.0)) for values in moved]

    def part(self, rows: slice, columns: slice | Tensor) -> Ia3Weights | None:
        if self.of_inputs:
            is_own = self.rows is None or bool(self.rows[rows].any())
            return Ia3Weights(self.scales[columns], of_inputs=True) if is_own else None
        scales, shifts = self.scales[rows], None if self.shifts is None else self.shifts[rows]
        return None if scales.eq(1).all() else replace(self, scales=scales, shifts=shifts)

    def beside(self, base: BaseLayer) -> list[Ia3Weights]:
        return [self]

    def fits(self, dtype: torch.dtype) -> bool:
        return all(x is None or bool(x.isfinite().all()) for x in (self.scales, self.shifts))

    def to(self, device: torch.device, dtype: torch.dtype) -> Ia3Weights:
        shifts = None if self.shifts is None else self.shifts.to(device)
        # in float32, as PEFT keeps them beside any type
        return replace(self, scales=self.scales.to(device), shifts=shifts)

    def merged(self, weight: Tensor) -> Tensor:
        if not self.of_inputs:
            return weight * self.scales[:, None]
        scaled = weight * self.scales
        return scaled if self.rows is None else scaled.where(self.rows[:, None], weight)

    def merged_bias(self, bias: Tensor) -> Tensor:
        return bias if self.of_inputs else bias * self.scales

    def bank(self, in_features: int, part_sizes: Mapping[str, int], room: AdapterRoom) -> Ia3Bank:
        return Ia3Bank(in_features, part_sizes, room)


class Ia3Bank:
    """Holds the scales of all adapters for one Linear: of its outputs, and of the inputs of each part that one of them
    changes."""

    adds = False

    def __init__(self, in_features: int, part_sizes: Mapping[str, int], room: AdapterRoom):
        self.in_features, self.room = in_features, room
        bounds = itertools.pairwise(itertools.accumulate(part_sizes.values(), initial=0))
        self._columns = {part: slice(*place) for part, place in zip(part_sizes, bounds, strict=True)}
        # the last row of each is of ones: NO_ADAPTER's
        self._outputs: Tensor | None = None  # [n + 1, out]
        self._shifts: Tensor | None = None  # [n + 1, out], where any are not zeros; its last row is
        self._inputs: dict[str, Tensor] = {}  # by part: [n + 1, in]

    @property
    def parts(self) -> list[str]:
        """Returns what there is room for: the outputs, what is added to them, and parts for their inputs."""
        own = {"outputs": self._outputs, "shifts": self._shifts}
        return [name for name, held in own.items() if held is not None] + [f"{part} inputs" for part in self._inputs]

    def clear(self, slot: int) -> None:
        """Forgets what lies in a slot."""
        for scales in (*self._inputs.values(), *([] if self._outputs is None else [self._outputs])):
            scales[slot] = 1.0
        if self._shifts is not None:
            self._shifts[slot] = 0.0

    def put(self, slot: int, part: str, weights: Ia3Weights) -> None:
        """Takes an adapter's scales of a part, on the device."""
        ones = lambda width: weights.scales.new_ones(self.room.max_loras + 1, width)  # noqa: E731
        if weights.of_inputs:
            self._inputs.setdefault(part, ones(self.in_features))[slot] = weights.scales
            return
        if self._outputs is None:
            self._outputs = ones(max(columns.stop for columns in self._columns.values()))
        self._outputs[slot, self._columns[part]][: len(weights.scales)] = weights.scales
        if weights.shifts is not None:
            if self._shifts is None:
                self._shifts = torch.zeros_like(self._outputs)
            self._shifts[slot, self._columns[part]][: len(weights.shifts)] = weights.shifts

    def __call__(self, x: Tensor, adapter_ids: Tensor, product: Product) -> Tensor:
        y = self._product(x, adapter_ids, product)
        return y if self._outputs is None else scale_rows(y, adapter_ids, self._outputs, self._shifts)

    def _product(self, x: Tensor, adapter_ids: Tensor, product: Product) -> Tensor:
        """Computes the product of scaled inputs. Parts have one each where they are scaled apart, which few adapters
        do: they scale what goes into products of one part."""
        inputs = {part: scale_rows(x, adapter_ids, scales) for part, scales in self._inputs.items()}
        if not inputs:
            return product(x)
        if len(self._columns) == 1:
            return product(*inputs.values())
        return torch.cat([product(inputs.get(part, x))[:, own] for part, own in self._columns.items()], 1)
