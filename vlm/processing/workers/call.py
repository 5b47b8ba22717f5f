"""A call of a function with a worker process: it waits, runs, and can be ended by whoever does not want it any more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from vlm.processing.workers.process import WorkerProcess


class Call(Future[Any]):
    """A call that waits or runs. One that is cancelled in time holds nothing."""

    def __init__(self, function: Callable[[WorkerProcess], Any]):
        super().__init__()
        self._function: Callable[[WorkerProcess], Any] | None = function
        self._worker: WorkerProcess | None = None
        self._lock = threading.Lock()

    def run(self, worker: WorkerProcess) -> None:
        """Runs the call in the worker's thread."""
        if not self.set_running_or_notify_cancel():
            return
        with self._lock:
            self._worker = worker
        assert self._function is not None  # only what was cancelled or has failed holds none
        try:
            result = self._function(worker)
        except Exception as error:
            self._release()
            self.set_exception(error)
        else:
            self._release()
            self.set_result(result)

    def fail(self, error: Exception) -> None:
        """Tells whoever waits for it that it will not run."""
        if self.set_running_or_notify_cancel():
            self._function = None
            self.set_exception(error)

    def cancel(self) -> bool:
        """Drops it, with what it holds, if it waits."""
        if not super().cancel():
            return False
        self._function = None
        return True

    def kill(self) -> None:
        """Ends it whether it waits or runs."""
        if self.cancel():
            return
        with self._lock:
            if self._worker is not None:
                self._worker.kill()

    def _release(self) -> None:
        """Lets the worker be another call's from now on."""
        self._function = None
        with self._lock:
            self._worker = None
