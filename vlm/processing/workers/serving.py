"""What a worker process does: it answers calls one at a time, within its memory, and dies with its parent."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import multiprocessing
import os
import pickle
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from vlm.processing.workers.fork_server import Preparation
from vlm.processing.workers.heap import keep_freed_memory
from vlm.processing.workers.result_buffer import ResultBuffer

READY, RESULT, ERROR, OUT_OF_MEMORY = "ready", "result", "error", "out of memory"
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def serve(
    pipe: Connection, buffer: ResultBuffer, memory_mb: int, preload: str, preparations: tuple[Preparation, ...]
) -> None:
    """Answers calls until its parent has gone, or memory has run out: what is left may not serve the next call."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    _die_with_parent()
    importlib.import_module(preload)
    keep_freed_memory()
    for prepare in preparations:
        prepare()
    _silence_libraries()
    _limit_memory(memory_mb)
    with contextlib.suppress(EOFError, OSError):  # of the pipe
        pipe.send((READY, None))
        while _answered(pipe, buffer):
            pass


def _answered(pipe: Connection, buffer: ResultBuffer) -> bool:
    try:
        function, arguments = pipe.recv()
        kind, value = _result(function, arguments)
        pipe.send((kind, buffer.write(value)))
    except MemoryError:
        pipe.send((OUT_OF_MEMORY, None))
        return False
    return True


def _result(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[str, Any]:
    try:
        return RESULT, function(*arguments)
    except MemoryError:
        raise
    except Exception as error:
        if getattr(error, "kind", None) == "memory" or "can't allocate memory" in str(error):  # torch says so
            raise MemoryError from None
        return ERROR, _portable(error)


def _portable(error: Exception) -> Exception:
    """Returns an error that survives the pipe."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _die_with_parent() -> None:
    """Lets a thread end this process, on Linux the kernel too: a call may hold Python's lock for minutes.

    The kernel's parent of it is the process that it was forked from, which ends when nobody holds its pipe any more.
    """
    server: Any = forkserver._forkserver  # private: its fields have no types
    if (pipe := getattr(server, "_forkserver_alive_fd", None)) is not None:
        os.close(pipe)  # which each fork is given, to fork in its turn
        server._forkserver_alive_fd = None
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    threading.Thread(target=_exit_after_parent, daemon=True).start()  # at once if it went before


def _exit_after_parent() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
    os._exit(1)


def _silence_libraries() -> None:
    """Leaves stderr to Python: libraries would write lines of each damaged file, of which the client is told. What
    Python itself says, tracebacks too, goes where it went."""
    warnings.simplefilter("ignore")
    with contextlib.suppress(OSError):  # there may be none
        sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        os.close(null)


def _limit_memory(memory_mb: int) -> None:
    """Limits memory to `memory_mb` MiB more than now. Linux alone counts, by RLIMIT_DATA, what is private and writable:
    not the libraries, which are shared."""
    if sys.platform != "linux":
        return
    import resource

    [kilobytes] = re.findall(r"VmData:\s*(\d+)", Path("/proc/self/status").read_text())
    size = int(kilobytes) * 1024
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    limit = size + memory_mb * 2**20
    limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is expected: its dump would fill the disk
    # where the machine runs out of memory all the same, this process goes, not the engine
    Path("/proc/self/oom_score_adj").write_text("1000")
