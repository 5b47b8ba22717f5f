"""Adds up what Triton spends on compiling kernels in this process. They lie in its cache then: another process waits no
more."""

from __future__ import annotations

from typing import Any

_seconds = 0.0


def compile_seconds() -> float:
    """Returns the seconds so far."""
    return _seconds


def watch() -> None:
    """Listens to Triton, beside who listens already."""
    from triton import knobs

    earlier = knobs.compilation.listener

    def listen(*, times: Any, cache_hit: bool, **event: Any) -> None:
        global _seconds
        if not cache_hit:
            _seconds += times.total / 1e6
        if earlier is not None:
            earlier(times=times, cache_hit=cache_hit, **event)

    knobs.compilation.listener = listen
