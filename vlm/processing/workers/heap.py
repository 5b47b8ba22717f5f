"""The memory of a process that reads pictures."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
KEPT = 64 * 2**20  # bytes at the end of the heap that stay with the process: what drawing a page takes
LARGEST = 32 * 2**20  # bytes of an allocation that comes from the heap; glibc takes no more


def keep_freed_memory() -> None:
    """Lets this process keep what it frees, for the next picture: the system would fill it with zeros page by page,
    which takes as long as drawing. Of glibc alone; other libraries have means of their own."""
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST)
        mallopt(M_TRIM_THRESHOLD, KEPT)
