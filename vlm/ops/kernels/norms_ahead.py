"""Norms of one row that wait for the product that takes the row (gemv.py), norms and activations of several that wait
for who rounds them to 8 bits (w8a8.py): both are one kernel then. Products of a few rows wait for the norm behind them,
and this for the product that takes its rows (gemm.py): two kernels then compute all three."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from vlm.ops.activation import Activation
from vlm.ops.kernels import nvrtc
from vlm.ops.kernels.rounding import Rounding

NO_NORM, RMS_NORM, LAYER_NORM = range(3)  # as in gemv.cu
X_TYPES = (torch.float16, torch.bfloat16)
VECTOR = 8  # values that are loaded at once
MOST_VALUES = 8192  # of a row: four vectors a thread
MOST_ROUNDED = 32768  # of a row that a program holds


class Waiting(Protocol):
    """Rows that have not been computed yet."""

    @property
    def row(self) -> Tensor: ...

    def launch(self, rounding: Rounding | None = None) -> None:
        """Computes them, and what they are rounded to."""
        ...


@dataclass(frozen=True)
class Product:
    """Holds a product's inputs and results: `row` [R, N], the activation of x weightᵀ + bias, of 8 bits with the scales
    of x and of the weight. `compute` fills the results."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    activation: Activation | None
    scales: tuple[Tensor, Tensor] | None
    row: Tensor
    compute: Callable[[Product], None]

    def launch(self, rounding: Rounding | None = None) -> None:
        """Computes it by itself."""
        assert rounding is None, "it does not round"
        self.compute(self)


@dataclass(frozen=True)
class Norm:
    """A norm's inputs and results: `row` [R, K], the norm of `stream` = x + delta, which is x where there is no delta;
    an RMS norm has no shift. `compute` fills the results, behind the product that makes delta, if that waits."""

    x: Tensor
    delta: Tensor | None
    gain: Tensor
    shift: Tensor | None
    eps: float
    stream: Tensor
    row: Tensor
    compute: Callable[[Norm, Rounding | None], None]
    product: Product | None = None

    @property
    def fits(self) -> bool:
        """Tells whether it can be computed ahead of a product."""
        inputs = [x for x in (self.x, self.delta, self.gain, self.shift) if x is not None]
        one_row = self.row.ndim == 2 and len(self.row) == 1 and self.row.shape[1] % VECTOR == 0
        typed = self.gain.dtype in X_TYPES and all(x.dtype in (self.gain.dtype, torch.float32) for x in inputs)
        alike = self.shift is None or self.shift.dtype == self.gain.dtype
        narrow = self.row.shape[-1] <= MOST_VALUES
        return (
            one_row
            and typed
            and alike
            and narrow
            and all(map(is_aligned, inputs))
            and nvrtc.copies_boxes(self.row.device)
        )

    @property
    def kind(self) -> int:
        return RMS_NORM if self.shift is None else LAYER_NORM

    def launch(self, rounding: Rounding | None = None) -> None:
        """Computes it by itself, and what it is rounded to."""
        if self.product is not None:
            self.product.launch()
        self.compute(self, rounding)


class _Launching:
    """Launches what waits ahead of torch's operations. A class of its own: torch has its compiler leave alone what a
    mode's class itself defines, and imports it for that when the first operation comes, which takes seconds."""

    def launch(self) -> None:
        raise NotImplementedError

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not _is_harmless(func):
            self.launch()
        return func(*args, **(kwargs or {}))


class NormsAhead(_Launching, TorchDispatchMode):
    """Within it a norm of one row is computed by the product that takes the row, if that is launched next. Where
    `rounded_from` rows and more are rounded, a norm or an activation of so many ends with that. `one_reader` says that
    nothing but the next product reads the row of a norm that adds, and nothing but the norm what is added.

    Otherwise what waits is launched by itself: ahead of every operation of torch but views and allocations, and of
    every kernel of Triton's.
    """

    def __init__(self, rounded_from: int | None = None, *, one_reader: bool = False) -> None:
        super().__init__()
        self._waiting: Waiting | None = None
        self._rounded_from, self.one_reader = rounded_from, one_reader

    @staticmethod
    def current() -> NormsAhead | None:
        """Returns the one that this thread is within."""
        return getattr(_of_thread, "norms_ahead", None)

    def __enter__(self) -> NormsAhead:
        _watch_kernels()
        _of_thread.norms_ahead = self
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)
        _of_thread.norms_ahead = None
        if error is None:
            self.launch()
        self._waiting = None

    def awaits(self, rows: Tensor) -> bool:
        """Says whether rows may wait for who rounds them."""
        if self._rounded_from is None or rows.ndim != 2:
            return False
        return len(rows) >= self._rounded_from and rows.shape[1] <= MOST_ROUNDED

    def put(self, waiting: Waiting) -> None:
        """Lets a norm, an activation or a product wait."""
        self.launch()
        self._waiting = waiting

    def offer(self, norm: Norm) -> bool:
        """Lets a norm wait if that pays. Returns whether it does."""
        product = None if norm.delta is None else self.taken(norm.delta)
        if isinstance(product, Product):
            norm = replace(norm, product=product)
        elif product is not None:
            product.launch()
        if waits := norm.product is not None or norm.fits or self.awaits(norm.row):
            self.put(norm)
        return waits

    def taken(self, row: Tensor) -> Waiting | None:
        """Returns what makes these rows, if it waits, for who computes it; launches another one."""
        waiting = self._waiting
        if waiting is None or (waiting.row.data_ptr(), waiting.row.shape) != (row.data_ptr(), row.shape):
            self.launch()
            return None
        self._waiting = None
        return waiting

    def taken_norm(self, row: Tensor) -> Norm | None:
        """Returns the norm whose row this is, as `taken` does; launches what is none."""
        waiting = self.taken(row)
        if waiting is None or isinstance(waiting, Norm):
            return waiting
        waiting.launch()
        return None

    def launch(self) -> None:
        """Launches what waits."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.launch()


_of_thread = threading.local()
_ALLOCATIONS = {
    torch.ops.aten.empty.memory_format, torch.ops.aten.empty_like.default, torch.ops.aten.empty_strided.default,
    torch.ops.aten.new_empty.default, torch.ops.aten._unsafe_view.default,
}  # fmt: skip


@functools.cache
def _is_harmless(operation: Any) -> bool:
    """Tells whether an operation reads and writes no tensor's values: a view, or an allocation."""
    aliases = [result.alias_info for result in operation._schema.returns]
    is_view = bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)
    return is_view or operation in _ALLOCATIONS


@functools.cache
def _watch_kernels() -> None:
    """Lets Triton, and nvrtc.py, say so before they launch a kernel."""
    from triton import knobs

    knobs.runtime.launch_enter_hook.add(launch_waiting)
    nvrtc.before_launch.append(launch_waiting)


def launch_waiting(metadata: Any = None) -> None:
    """Launches what waits in this thread, if anything does: ahead of every kernel, and of work on another stream."""
    if (ahead := NormsAhead.current()) is not None:
        ahead.launch()


def is_aligned(x: Tensor) -> bool:
    """Tells whether a tensor's vectors can be loaded, and its boxes copied."""
    return x.is_contiguous() and x.data_ptr() % 16 == 0
