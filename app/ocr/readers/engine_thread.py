"""An engine's thread: it reads on while another thread does what its events are for."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from vlm_app.ocr.events import Waiting

if TYPE_CHECKING:
    import torch

EVENTS = 1024  # that wait to be taken
SECONDS = 0.1  # between two looks at whether anybody takes them
QUIET_SECONDS = 1.0  # without an event, until that is told
END = object()
Put = Callable[[Any], None]


class EngineThread:
    """Runs a function that puts events, on a device; iterated, it gives them, now and then that there are none, and
    raises what the function raises."""

    def __init__(self, function: Callable[[Put], None], device: torch.device):
        self._function, self._device = function, device
        self._events: queue.Queue[Any] = queue.Queue(EVENTS)
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Any]:
        while (event := self._next()) is not END:
            if isinstance(event, BaseException):
                raise event
            yield event

    def stop(self) -> None:
        """Ends the function at its next event."""
        self._is_stopped.set()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            with _on(self._device):
                self._function(self._put)
            self._put(END)
        except _Stopped:
            pass
        except BaseException as error:
            with contextlib.suppress(_Stopped):
                self._put(error)

    def _next(self) -> Any:
        try:
            return self._events.get(timeout=QUIET_SECONDS)
        except queue.Empty:
            return Waiting()

    def _put(self, event: Any) -> None:
        while not self._is_stopped.is_set():
            with contextlib.suppress(queue.Full):
                self._events.put(event, timeout=SECONDS)
                return
        raise _Stopped


class _Stopped(Exception):
    """Nobody takes events any more."""


def _on(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Makes a device this thread's own: each begins with the first one."""
    if device.type != "cuda":
        return contextlib.nullcontext()
    import torch

    return torch.cuda.device(device)  # pyright: ignore[reportReturnType] - it is one, without its type
