"""Engines that share a GPU take turns: no other thread may allocate there while one captures a CUDA graph."""

from __future__ import annotations

import contextlib
import functools
import threading
from contextlib import AbstractContextManager

import torch


class FairLock:
    """A lock that goes to who has waited longest; an ordinary one would stay with the thread that lets it go."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._next_ticket = self._now_serving = 0

    def __enter__(self) -> None:
        with self._condition:
            ticket = self._next_ticket
            self._next_ticket += 1
            self._condition.wait_for(lambda: self._now_serving == ticket)

    def __exit__(self, *_: object) -> None:
        with self._condition:
            self._now_serving += 1
            self._condition.notify_all()


def device_lock(device: torch.device) -> AbstractContextManager[None]:
    """What to hold while an engine works on a device."""
    return _gpu_lock(device.index or 0) if device.type == "cuda" else contextlib.nullcontext()


@functools.cache
def _gpu_lock(index: int) -> FairLock:
    return FairLock()
