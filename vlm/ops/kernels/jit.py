"""`triton.jit` with types of what it makes: its own say that a kernel is the function, which takes no `num_warps`.

They also say that a reduction may return a tuple, which without `return_indices` none does: a kernel that computes with
one has that line left out of the check.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol, cast

import triton

from vlm.ops.kernels import compile_time

# rows, and the farthest distance of two positions: Triton compiles a kernel anew for an integer that is 1 and for one
# that 16 divides, and the first batch of so many would wait for it
VARYING = ("R", "count", "MOST", "FAR")


class Kernel(Protocol):
    """A compiled function: called by other kernels, launched by the host."""

    def __call__(self, *arguments: Any, **constants: Any) -> Any:
        """Becomes part of a kernel that calls it."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        """Returns what launches it on a grid of programs: takes its arguments and `num_warps`, `num_stages`, …"""
        ...


def jit(function: Callable[..., Any]) -> Kernel:
    """Compiles a function for the arguments of its launches."""
    parameters = inspect.signature(function).parameters.values()
    varying = [p.name for p in parameters if p.name in VARYING and "constexpr" not in str(p.annotation)]
    return cast("Kernel", triton.jit(do_not_specialize=varying)(function))


compile_time.watch()
