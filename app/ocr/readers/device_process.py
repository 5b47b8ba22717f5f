"""What the process of a device does: it reads the works that come through a pipe, and sends what it read."""

from __future__ import annotations

import os
import queue
import signal
import threading
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from vlm.errors import VlmError
from vlm_app.ocr.readers.reader import PipelineReader

if TYPE_CHECKING:
    from vlm_app.ocr.readers.engines import EngineConfig

READY, ROUND_DONE = "ready", "round done"


def serve(pipe: Connection, engine: EngineConfig, device: str) -> None:
    """Serves rounds (sampling options, works, None); ends when the other side has gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    messages: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=_receive, args=(pipe, messages), daemon=True).start()
    try:
        reader = PipelineReader.load(engine.on(device))
        pipe.send(READY)
        while True:
            sampling = messages.get()
            for event in reader.read(iter(messages.get, None), sampling):
                pipe.send(event)
            pipe.send(ROUND_DONE)
    except VlmError as error:
        pipe.send(error)


def _receive(pipe: Connection, messages: queue.Queue[Any]) -> None:
    """Takes messages at once, so that neither side waits for the other."""
    while True:
        try:
            messages.put(pipe.recv())
        except (EOFError, OSError):
            os._exit(0)  # the parent has gone, by its will or by a kill: no engine may be left
