"""What makes equal contents equal: images and tables are known by a hash of their values."""

from __future__ import annotations

import functools
import hashlib
import os
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
    """Returns a hash of each piece."""
    pieces = [content[begin : begin + PIECE] for begin in range(0, len(content), PIECE)]
    return list(_threads().map(_digest, pieces))


def _digest(piece: memoryview) -> bytes:
    return hashlib.sha256(piece).digest()


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1), "hash")


os.register_at_fork(after_in_child=_threads.cache_clear)  # threads stay behind
