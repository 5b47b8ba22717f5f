"""Python's collector of cyclic garbage, where it must not run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

_lock = RLock()  # a finalizer may come between
_were_on: list[bool] = []  # were collections on, ahead of each block that has not ended?


@contextmanager
def without_collections() -> Iterator[None]:
    """Has no garbage collected in its block, nor after it while another thread's has not ended."""
    with _lock:
        _were_on.append(any(_were_on) or gc.isenabled())
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            if _were_on.pop() and not _were_on:
                gc.enable()
