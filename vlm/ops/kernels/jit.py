"""`triton.jit` with types of what it makes: its own say that a kernel is the function, which takes no `num_warps`.

They also say that a reduction may return a tuple, which without `return_indices` none does: a kernel that computes with
one has that line left out of the check.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

import triton

from vlm.ops.kernels import compile_time


class Kernel(Protocol):
    """A compiled function: called by other kernels, launched by the host."""

    def __call__(self, *arguments: Any, **constants: Any) -> Any:
        """Becomes part of a kernel that calls it."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        """Returns what launches it on a grid of programs: takes its arguments and `num_warps`, `num_stages`, …"""
        ...


compile_time.watch()
jit = cast("Callable[[Callable[..., Any]], Kernel]", triton.jit)
