"""What the inputs of Linear layers are like over a calibration set, recorded in front of their products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from vlm.layers.linear import Linear


@dataclass(frozen=True)
class Needs:
    """What an algorithm asks of a Linear's inputs beside their magnitudes."""

    rows: int = 0  # so many of them, drawn at random
    hessian: bool = False

    def nbytes(self, in_features: int) -> int:
        """Returns the memory that it takes of one Linear while a pass is recorded."""
        return 4 * in_features * (self.rows + in_features * self.hessian)


@dataclass(frozen=True)
class Statistics:
    """The inputs x [R, in] of one Linear; float32, on the device where the Linear is."""

    mean_abs: Tensor  # [in], of |x|
    max_abs: Tensor  # [in]
    rows: Tensor  # [n, in], a sample
    hessian: Tensor | None  # [in, in], xᵀ x / R


class Recorder:
    """Records the inputs of Linear layers while it is entered. No CUDA graph may run meanwhile: hooks would not."""

    def __init__(self, linears: Mapping[str, Linear], needs: Needs, seed: int = 0):
        self._accumulators = {path: _Accumulator(needs, seed) for path in linears}
        self._linears = linears
        self._handles: list[Any] = []

    def __enter__(self) -> Self:
        for path, linear in self._linears.items():
            self._handles.append(linear.register_forward_pre_hook(self._accumulators[path].hook))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def take(self, path: str) -> Statistics | None:
        """Returns what was recorded of a layer, and forgets it; None where no row came."""
        return self._accumulators.pop(path).result()


class _Accumulator:
    def __init__(self, needs: Needs, seed: int):
        self.needs, self.seed, self.count = needs, seed, 0
        self.draws: torch.Generator | None = None

    def hook(self, linear: Any, inputs: tuple[Any, ...]) -> None:
        """Takes what a Linear's forward is about to be given."""
        self.add(inputs[0])

    @torch.inference_mode()
    def add(self, x: Tensor) -> None:
        rows = x.detach().reshape(-1, x.shape[-1]).float()
        if not len(rows):
            return
        if self.draws is None:
            self._begin(rows)
        self.count += len(rows)
        magnitudes = rows.abs()
        self.sum_abs += magnitudes.sum(0)
        self.max_abs = torch.maximum(self.max_abs, magnitudes.amax(0))
        if self.needs.rows:
            self._sample(rows)
        if self.gram is not None:
            self.gram.addmm_(rows.t(), rows)

    def _begin(self, rows: Tensor) -> None:
        size = rows.shape[1]
        self.draws = torch.Generator().manual_seed(self.seed)
        self.sum_abs, self.max_abs = rows.new_zeros(size), rows.new_zeros(size)
        self.rows, self.keys = rows[:0], torch.empty(0)
        self.gram = rows.new_zeros(size, size) if self.needs.hessian else None

    def _sample(self, rows: Tensor) -> None:
        """Keeps the rows of the largest of random keys: each row that came is as likely to be among them."""
        keys = torch.cat([self.keys, torch.rand(len(rows), generator=self.draws)])
        best = keys.topk(min(self.needs.rows, len(keys))).indices
        self.rows = torch.cat([self.rows, rows])[best.to(rows.device)]
        self.keys = keys[best]

    def result(self) -> Statistics | None:
        if not self.count:
            return None
        hessian = None if self.gram is None else self.gram / self.count
        return Statistics(self.sum_abs / self.count, self.max_abs, self.rows, hessian)
