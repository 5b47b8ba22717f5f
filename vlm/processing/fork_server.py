"""The process that workers are forked from: what a preparation loads there, all of them share."""

from __future__ import annotations

import base64
import contextlib
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, SpawnContext

Preparation = Callable[[], object]  # a function of a module, or a partial of one

_VARIABLE = "VLM_FORK_SERVER_PREPARATIONS"  # of the environment: what a fork server is told is the names of modules
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
    context.set_forkserver_preload(["__main__", preload])
    with _lock, _told(preparations):
        forkserver.ensure_running()
    return context


@contextlib.contextmanager
def _told(preparations: Sequence[Preparation]) -> Iterator[None]:
    os.environ[_VARIABLE] = base64.b64encode(pickle.dumps(tuple(preparations))).decode()
    try:
        yield
    finally:
        del os.environ[_VARIABLE]


# --- in the fork server ---
def run_preparations() -> None:
    """Runs the preparations that this process was started with, if it is a fork server. What fails is left to the
    workers, who run them again and tell."""
    if (preparations := os.environ.pop(_VARIABLE, None)) is None:
        return
    with contextlib.suppress(Exception):
        for prepare in pickle.loads(base64.b64decode(preparations)):
            prepare()
