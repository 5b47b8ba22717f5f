"""Programmatic dependent launch: a kernel starts while the one before it ends, requests its weights, and waits for that
one's results before it touches anything else.

A kernel of `dependent` calls `let_next_start`, perhaps `prefetch`, then `wait_for_inputs`, in every program: whoever
waits for it waits for all before it, too. What is read before the wait must be constant. Without compute capability 9.0
these are plain launches. (CUDA's programming guide, "Programmatic Dependent Launch and Synchronization".)
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
FIRST = tl.constexpr(int(__import__("os").environ.get("VLM_FIRST", "528")))
MOST = tl.constexpr(32768)  # bytes a program requests: those of all that run at once fit the cache


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


@jit
def prefetch(start_ptr, size):
    """Requests `size` bytes of constants from start_ptr on into the second-level cache, 32 KB of them at most: only by
    programs that start first, all others have nothing to wait for."""
    if DEPENDENT and tl.program_id(0) < FIRST and FIRST > 0:
        tl.inline_asm_elementwise(
            """{
            .reg .pred one; .reg .u64 start; .reg .u32 bytes, thread;
            mov.u32 thread, %tid.x;
            and.b64 start, $1, -16;
            and.b32 bytes, $2, -16;
            setp.eq.u32 one, thread, 0;
            setp.ne.and.u32 one, bytes, 0, one;
            @one cp.async.bulk.prefetch.L2.global [start], bytes;
            mov.u32 $0, 0;
            }""",
            "=r,l,r", [start_ptr.to(tl.int64), tl.minimum(size, MOST).to(tl.int32)],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
