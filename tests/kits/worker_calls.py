"""What worker processes are told to do in tests; it imports little, so that they start at once."""

from __future__ import annotations

import ctypes
import os
import resource
import sys

import numpy as np

from vlm.errors import ImageError
from vlm.processing.workers.process import Budget

ENDLESS = Budget(1e6, 256)


def double(number: int) -> int:
    return 2 * number


def pid() -> int:
    return os.getpid()


def complain() -> None:
    """As a library in C does, then in Python."""
    os.write(2, b"unheard\n")
    print("heard", file=sys.stderr)


def hang(seconds: float = 1e6) -> None:
    """In C, Python's lock held."""
    ctypes.PyDLL(None).usleep(int(min(seconds, 2000) * 1e6))


def hang_once(marker: str) -> str:
    """Hangs, the first time; says so the second."""
    if os.path.exists(marker):
        return "again"
    open(marker, "w").close()
    hang()
    return "never"


def eat(megabytes: int) -> int:
    return len(bytearray(megabytes * 2**20))


def page_faults(buffers: int) -> int:
    """Returns how many pages the system gave for buffers of 8 MB, after as many were taken and freed."""
    before = 0
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        [bytearray(b"x") * 2**23 for _ in range(buffers)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def die(number: int) -> None:
    os.kill(os.getpid(), number)


def arrays(*sizes: int) -> dict[int, np.ndarray]:
    return {size: np.arange(size, dtype=np.int64)[::-1] + size for size in sizes}


def refuse() -> None:
    raise ImageError("this is wrong.", "too large")


def fail_oddly() -> None:
    class Odd(Exception):
        """Nobody can unpickle it."""

    raise Odd("so it is")


prepared_by: list[int] = []  # the processes that `prepare` has run in, this one last


def prepare() -> None:
    prepared_by.append(os.getpid())


def preparers() -> list[int]:
    return prepared_by


def warmed_up() -> tuple[list[str], int, int]:
    """Returns which packages are imported that only some image processors need, how many processors this process or the
    one that it was forked from has run, and how often that had been done already."""
    from vlm.processing.media import reading as media_reading

    packages = [name for name in ("transformers", "torchvision", "huggingface_hub") if name in sys.modules]
    runs = media_reading._warm_up.cache_info()
    return packages, runs.misses, runs.hits
