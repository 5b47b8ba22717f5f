"""Makes the next tensors of a file in threads while those before them are written."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")
THREADS = min(8, os.cpu_count() or 1)  # torch frees the GIL
AHEAD_BYTES = 512 << 20  # of results that wait, but that the next one is always under way


def settle_threads() -> None:
    """Makes torch's threads, which a forked process lacks: several threads must not be the first at once."""
    torch.set_num_threads(torch.get_num_threads())


def read_ahead(read: Callable[[str], T], sizes: Iterable[tuple[str, int]]) -> Iterator[T]:
    """Yields read(name) for each (name, bytes of the result), in order. A call's error is raised in its turn."""
    coming, waiting, size = iter(sizes), deque[tuple[Future[T], int]](), 0
    settle_threads()
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="read-ahead")
    try:
        following = next(coming, None)
        while waiting or following:
            while following and (not waiting or (len(waiting) <= THREADS and size + following[1] <= AHEAD_BYTES)):
                waiting.append((pool.submit(read, following[0]), following[1]))
                size, following = size + following[1], next(coming, None)
            future, nbytes = waiting.popleft()
            yield future.result()
            size -= nbytes
    finally:
        pool.shutdown(cancel_futures=True)
