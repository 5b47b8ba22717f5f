"""What running out of memory looks like: torch says it on GPUs by a type, on the CPU in words, as ONNX Runtime does."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from vlm.errors import OutOfMemoryError, VlmError

P = ParamSpec("P")
R = TypeVar("R")

FULL = "the device ran out of memory while it worked on this request; send it again later, or a smaller one."
PHRASES = re.compile(
    "out of memory"
    "|allocate memory"  # torch's allocator: "can't allocate memory"; ONNX Runtime's: "Failed to allocate memory"
    "|not enough memory"
    "|bad_alloc|bad allocation"
    "|ALLOC_FAILED"  # cuBLAS, cuDNN
    "|could not create a memory object|could not create a primitive(?! descriptor)"  # oneDNN
    "|size calculation overflowed"  # torch, of more bytes than an address counts
)


def is_out_of_memory(error: BaseException) -> bool:
    """Says whether a computation failed for want of memory, whatever library it came from."""
    if isinstance(error, MemoryError | OutOfMemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, Exception) and not isinstance(error, VlmError) and bool(PHRASES.search(str(error)))


def in_words(num_bytes: float) -> str:
    """Returns a size as "61.1 GiB", one below that in MiB."""
    return f"{num_bytes / 2**30:,.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.1f} MiB"


def full() -> OutOfMemoryError:
    """Returns what says so of one request among others."""
    return OutOfMemoryError(FULL)


class suppress_out_of_memory:
    """Goes on after its block where memory ran out in it; the error's frames, which hold tensors, are gone then.
    `error` tells of it: ours where the block raised it."""

    def __init__(self):
        self.error = full()

    def __enter__(self) -> suppress_out_of_memory:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, OutOfMemoryError):
            self.error = copy.copy(error)  # without its frames
        return error is not None and is_out_of_memory(error)


class memory_errors:
    """Raises what `error` returns where memory runs out in its block, or in the function that it decorates. A class:
    every request that is built goes through one."""

    def __init__(self, error: Callable[[], OutOfMemoryError] = full):
        self._error = error

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def guarded(*arguments: P.args, **options: P.kwargs) -> R:
            try:
                return function(*arguments, **options)
            except BaseException as error:
                self.__exit__(type(error), error, None)
                raise

        return guarded

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and is_out_of_memory(error):
            raise self._error()
