"""The process that workers are forked from: what a preparation loads there, all of them share."""

from __future__ import annotations

import base64
import contextlib
import multiprocessing
import pickle
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, SpawnContext

from vlm.interrupts import blocked_interrupts

Preparation = Callable[[], object]  # a function of a module, or a partial of one

# A fork server is told names of modules alone, and passes over those that it cannot import; this one is of no module.
# The environment would be the other way: a process that another thread starts while it changes cannot be executed.
_MARK = "vlm-preparations-"
_lock = threading.Lock()


def start_fork_server(preload: str, preparations: Sequence[Preparation]) -> ForkServerContext | SpawnContext:
    """Starts this process's fork server, without waiting for it: it imports `preload`, a module, and where that calls
    `run_preparations` they are run. One that runs already stays as it is.

    Returns the context in which workers are started: never as forks of this process, which has threads and perhaps a
    device. Where there are no forks each is a new process.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    content = base64.urlsafe_b64encode(pickle.dumps(tuple(preparations))).decode()
    with _lock:
        context.set_forkserver_preload(["__main__", preload, _MARK + content])
        with blocked_interrupts():
            forkserver.ensure_running()
    return context


# --- in the fork server ---
def run_preparations() -> None:
    """Runs the preparations that this process was started with, if it is a fork server. What fails is left to the
    workers, who run them again and tell."""
    _, mark, rest = " ".join(sys.orig_argv).partition(_MARK)
    if not mark or multiprocessing.parent_process() is not None:  # a worker has the arguments of its fork server
        return
    with contextlib.suppress(Exception):
        for prepare in pickle.loads(base64.urlsafe_b64decode(rest.partition("'")[0])):
            prepare()
