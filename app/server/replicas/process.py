"""What the process of a replica does: it loads the models and serves them at a socket that its front alone reaches."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from vlm.errors import EngineError, InputError, VlmError
from vlm_app.core import renamed
from vlm_app.core.processes.early_start import start_early
from vlm_app.core.warning_lines import warnings_in_a_line
from vlm_app.server.core.config import ServerConfig
from vlm_app.server.replicas.config import VISIBLE, Placement
from vlm_app.server.repository.served_models import ServedModels
from vlm_app.server.run import EXIT_BROKEN, run_at

READY = "ready"


@dataclass(frozen=True)
class ReplicaJob:
    """What one replica serves, and where."""

    name: str
    placement: Placement
    models: ServedModels
    config: ServerConfig
    socket: Path
    say: Callable[[str | VlmError], object]  # to people; a function of a module, for it goes to another process
    flags: Mapping[str, str]  # of the verb that serves, by its settings


def serve_replica(job: ReplicaJob, pipe: Connection) -> None:
    """Tells the pipe when it is READY, or why it never is (a VlmError), or has ended by itself (EngineError)."""
    renamed.flags.set(job.flags)
    os.setsid()  # Ctrl-C is for the front, which lets requests end first
    threading.Thread(target=_end_with_parent, args=(job.socket.parent,), daemon=True).start()
    if job.placement.visible is not None:
        os.environ[VISIBLE] = job.placement.visible
    trouble: VlmError | None = None
    try:
        with warnings_in_a_line(job.say):
            reason = _serve(job, pipe)
        trouble = None if reason is None else EngineError(f"{reason}.")
    except VlmError as error:
        trouble = error
    if trouble is not None:
        pipe.send(trouble)
    sys.stderr.flush()
    os._exit(0 if trouble is None else EXIT_BROKEN)  # without taking down what torch has built, as every verb ends


def _serve(job: ReplicaJob, pipe: Connection) -> str | None:
    if job.config.media.workers and not job.models.urls:
        start_early(job.models.models.values(), job.config.media.preload)
    pipelines, repositories = job.models.load(job.say)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # until the server hears it
    with _bound(job.socket) as bound:
        return run_at(bound, pipelines, job.config, lambda: pipe.send(READY), repositories)


def _bound(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)  # of the process before
    bound = socket.socket(socket.AF_UNIX)
    try:
        bound.bind(str(path))
    except OSError as error:
        bound.close()
        raise InputError(f"{path} cannot be listened at: {error}; give a shorter TMPDIR, or one on a disk.") from None
    return bound


def _end_with_parent(folder: Path) -> None:
    """Ends the process, and with it those that it has started, when the front has gone, however it went."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    with contextlib.suppress(OSError):
        parent.join()
    shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGKILL)
