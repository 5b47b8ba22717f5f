"""Ctrl-C, which a terminal sends to a process and to all that it started, and SIGTERM, which a scheduler does."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


class Terminated(KeyboardInterrupt):
    """SIGTERM has come: whoever sent it waits for some seconds, and then kills."""


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Raises Terminated in the main thread where SIGTERM comes in its block; once, for schedulers send it to a process
    and again to its group."""

    def interrupt(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def blocked_interrupts(*, multiprocessing: bool = True) -> Iterator[None]:
    """Blocks SIGINT in this thread, and for good in the processes that are started in its block, by `multiprocessing`
    or not: one that still imports would end with a traceback."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    if multiprocessing:
        resource_tracker.ensure_running()  # it is started before a process, which then unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
