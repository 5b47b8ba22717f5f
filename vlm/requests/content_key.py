"""What makes equal contents equal: images and tables are known by a hash of their values."""

from __future__ import annotations

import functools
import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

SIZE = 16  # bytes of a key
PIECE = 2**18  # bytes of a content that threads hash beside each other: a page's take one of them milliseconds
MOST_THREADS = 8


def content_key(*parts: bytes | memoryview) -> bytes:
    """Returns a key of an image's pixels or of a table's rows."""
    hasher = hashlib.sha256()  # processors have instructions for it: twice as fast as BLAKE2
    for part in parts:
        content = memoryview(part).cast("B")
        hasher.update(content if len(content) <= PIECE else b"".join(_digests(content)))
    return hasher.digest()[:SIZE]


def _digests(content: memoryview) -> list[bytes]:
    """Returns a hash of each piece. The caller's thread takes one after the other; so do others, unless they are at an
    earlier content: of several images that are prepared at once each has a thread already."""
    pieces = [content[begin : begin + PIECE] for begin in range(0, len(content), PIECE)]
    digests, numbers, helpers = [b""] * len(pieces), iter(range(len(pieces))), _helpers()

    def hash_pieces() -> None:
        for number in numbers:  # each goes to one thread
            digests[number] = hashlib.sha256(pieces[number]).digest()

    if helpers.free.acquire(blocking=False):
        try:
            helpers.share(hash_pieces, most=len(pieces) - 1)
        finally:
            helpers.free.release()
    else:
        hash_pieces()
    return digests


class _Helpers:
    """Threads that take a part of a caller's work."""

    def __init__(self):
        self.size, self.free = min(MOST_THREADS, os.cpu_count() or 1) - 1, threading.Lock()
        self._pool = ThreadPoolExecutor(max(1, self.size), "hash")

    def share(self, work: Callable[[], None], most: int) -> None:
        """Does work, as at most so many others do beside it; waits for nobody who has not begun."""
        others = [self._pool.submit(work) for _ in range(min(most, self.size))]
        work()
        for other in others:
            if not other.cancel():
                other.result()


@functools.cache
def _helpers() -> _Helpers:
    return _Helpers()


os.register_at_fork(after_in_child=_helpers.cache_clear)  # threads stay behind
