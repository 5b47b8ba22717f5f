"""How many CPU threads we take, and how they wait: beside other work a thread that spins holds up whoever has some."""

from __future__ import annotations

import contextlib
import math
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from threading import Lock, Thread, get_ident

from vlm.errors import VlmWarning

CGROUP = Path("/sys/fs/cgroup")
# products of a pass up to which several threads lose more by waiting for each other than they gain
SINGLE_THREAD_PRODUCTS = 2**25
# OpenMP's threads spin for 4 ms (GNU) or 200 ms (Intel, LLVM) by themselves: about 0.1 ms bridges the gap to the next
# operation of a pass
WAITING = {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "1"}
WAITING_BY_USER = ("OMP_WAIT_POLICY", *WAITING)

_taking_one = Lock()
_processes: set[int] = set()  # that have set their threads: this one, and the one that it was forked from
_small_passes: dict[int, int] = {}  # thread -> torch's number of threads once its small pass has ended


def usable_cpus() -> int:
    """Counts the cores that this process may use: its affinity, and its container's quota."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux alone has it
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota = _quota()
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def set_environment() -> None:
    """Says how OpenMP's threads wait, in this process and its children, unless the user has. It is read when torch is
    imported."""
    if not any(name in os.environ for name in WAITING_BY_USER):
        os.environ.update(WAITING)


def set_threads(threads: int | None) -> None:
    """Gives torch `threads`. None: as many as it has (OMP_NUM_THREADS), but no more than there are usable cores. One in
    a process that was forked from one which has called this: it would wait for OpenMP's other threads for ever."""
    import torch

    if _is_forked():
        threads = 1
        warnings.warn(
            "this process was forked from one that has a model, whose threads are not in it, so that it computes with"
            ' one; start processes by multiprocessing.get_context("spawn").',
            VlmWarning,
            stacklevel=2,
        )
    if threads is None:
        threads = num_threads() if "OMP_NUM_THREADS" in os.environ else min(num_threads(), usable_cpus())
    torch.set_num_threads(threads)


def _is_forked() -> bool:
    _processes.add(os.getpid())
    return len(_processes) > 1


def num_threads() -> int:
    """Returns torch's number of threads outside of small passes: of those that another thread runs, too."""
    import torch

    return max(_small_passes.values(), default=0) or torch.get_num_threads()


def take_one_thread() -> None:
    """Lets torch compute what this thread asks for in this thread alone: the threads of a pool that had all cores each
    would wait for each other. Others keep their number."""
    import torch

    with _taking_one:  # or the next one would begin with what this one is about to put back
        usual = num_threads()
        torch.set_num_threads(1)
        # of this thread from now on, but also what new ones begin with: another one puts that back
        other = Thread(target=torch.set_num_threads, args=(usual,))
        other.start()
        other.join()


@contextlib.contextmanager
def threads_for(products: int, threads: int) -> Iterator[None]:
    """Runs a pass on at most `threads`, a small one on one. `products`: its multiplications, rows times parameters."""
    import torch

    small = products <= SINGLE_THREAD_PRODUCTS
    if torch.get_num_threads() == (1 if small else threads):
        yield
        return
    _small_passes[get_ident()] = threads  # torch's number is of the process: new threads begin with it
    torch.set_num_threads(1 if small else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        del _small_passes[get_ident()]


def _quota() -> float | None:
    """Reads how many cores' time the cgroup has (version 2, then 1); None: no limit."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = (CGROUP / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError):
        quota, period = (int((CGROUP / "cpu" / f"cpu.cfs_{x}_us").read_text()) for x in ("quota", "period"))
        return quota / period if quota > 0 else None
    return None
