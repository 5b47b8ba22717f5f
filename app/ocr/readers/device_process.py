"""What the process of a device does: it reads the works that come through a pipe, and sends what it read."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from vlm.errors import VlmError
from vlm_app.ocr.events import Waiting, Work
from vlm_app.ocr.readers.reader import PipelineReader, Taken

if TYPE_CHECKING:
    from vlm_app.ocr.readers.engines import EngineConfig

READY, ROUND_DONE = "ready", "round done"
SECONDS = 1.0  # between two tellings of its measures


def serve(pipe: Connection, engine: EngineConfig, device: str) -> None:
    """Serves rounds (sampling options, works, None); ends when the other side has gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    messages: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=_receive, args=(pipe, messages), daemon=True).start()
    try:
        reader = PipelineReader.load(engine.on(device))
        _send(pipe, READY)
        while True:
            sampling = messages.get()
            _read(reader, iter(messages.get, None), sampling, pipe)
            _send(pipe, ROUND_DONE)
    except VlmError as error:
        _send(pipe, error)


def _read(reader: PipelineReader, works: Iterator[Work], sampling: Mapping[str, Any], pipe: Connection) -> None:
    """Sends what comes of a round, and now and then what it has cost."""
    told = time.monotonic()
    _send(pipe, reader.measures())
    for event in reader.events(works, sampling):
        if not isinstance(event, Taken | Waiting):
            _send(pipe, event)
        if time.monotonic() - told >= SECONDS:
            told = time.monotonic()
            _send(pipe, reader.measures())
    _send(pipe, reader.measures())


def _send(pipe: Connection, message: Any) -> None:
    try:
        pipe.send(message)
    except OSError:
        os._exit(0)  # as `_receive` does, which may be told later


def _receive(pipe: Connection, messages: queue.Queue[Any]) -> None:
    """Takes messages at once, so that neither side waits for the other."""
    while True:
        try:
            messages.put(pipe.recv())
        except (EOFError, OSError):
            os._exit(0)  # the parent has gone, by its will or by a kill: no engine may be left
