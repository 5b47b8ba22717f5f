"""Programmatic dependent launch: a kernel starts while the one before it ends, and waits for that one's results before
it touches anything but weights.

A kernel of `dependent` calls `let_next_start`, then `wait_for_inputs`, in every program: whoever waits for it waits for
all before it, too. What is read before the wait must be constant, or written by a kernel that does not call
`let_next_start`, behind which nothing starts before it ends: who writes a step's lengths and tables, or keys and values
of other steps, does not. Without compute capability 9.0 these are plain
launches. (CUDA's programming guide, "Programmatic Dependent Launch and Synchronization".) Weights that a program
requested into the second-level cache before it waited made products of one row slower by a tenth.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import torch
import triton.language as tl
from triton import knobs
from triton.language.extra import cuda

from vlm.ops.kernels.jit import Kernel, jit


def _is_there() -> bool:
    if knobs.runtime.interpret or torch.version.cuda is None or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability() >= (9, 0)


DEPENDENT = tl.constexpr(_is_there())


class _Dependent:
    """Launches a kernel before the one ahead of it has ended."""

    def __init__(self, kernel: Kernel):
        self._kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        return functools.partial(self._kernel[grid], launch_pdl=True)


def dependent(function: Callable[..., Any]) -> Kernel:
    """Compiles a kernel that waits for its inputs by itself."""
    kernel = jit(function)
    return cast("Kernel", _Dependent(kernel)) if DEPENDENT.value else kernel


@jit
def let_next_start():
    """Allows the next kernel to start, as soon as all programs of this one run."""
    if DEPENDENT:
        cuda.gdc_launch_dependents()


@jit
def wait_for_inputs():
    """Waits until the kernels before this one have ended and what they wrote can be read."""
    if DEPENDENT:
        cuda.gdc_wait()
