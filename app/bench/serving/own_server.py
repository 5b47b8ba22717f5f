"""`vlm serve` in a process of its own, on a free port of the loopback, as long as it is measured."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType

from vlm.errors import InputError

READY = re.compile(r"serving .* at (http://\S+)")  # what `vlm serve` says once it listens
END_SECONDS = 60  # it lets requests end first, for up to 30 seconds
LAST_LINES = 20


@dataclass
class OwnServer:
    """A server that was started."""

    process: subprocess.Popen[str]
    url: str = ""
    began: float = 0.0  # of the clock of requests
    ready_seconds: float = 0.0  # from the command to where it listens
    said: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))


@contextlib.contextmanager
def own_server(model: str, options: Sequence[str], *, api_key: str | None) -> Iterator[OwnServer]:
    """Starts `vlm serve MODEL` with these further options, and ends it. Raises InputError, with its own sentence, where
    it does not start."""
    environment = os.environ | ({} if api_key is None else {"VLM_API_KEY": api_key})
    line = [sys.executable, "-m", "vlm_app.cli.main", "serve", model, *options, "--host", "127.0.0.1", "--port", "0"]
    began = time.perf_counter()
    process = subprocess.Popen(line, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    with _ended(process):
        server = OwnServer(process, began=began)
        _await_ready(server)
        threading.Thread(target=_listen, args=(server,), daemon=True).start()
        yield server


def _await_ready(server: OwnServer) -> None:
    assert server.process.stderr is not None
    for line in server.process.stderr:
        server.said.append(line.strip())
        if found := READY.search(line):
            server.url, server.ready_seconds = found[1], time.perf_counter() - server.began
            return
    reason = (
        next((line for line in reversed(server.said) if line), "it says nothing")
        .removeprefix("vlm: ")
        .removeprefix("Error: ")
    )
    raise InputError(f"vlm serve did not start: {reason}")


def _listen(server: OwnServer) -> None:
    """Reads what it says, for a full pipe would stop it."""
    assert server.process.stderr is not None
    server.said.extend(line.strip() for line in server.process.stderr)


@contextlib.contextmanager
def _ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """Ends the process, when this one is told to end, too: at once, for an exception of a signal's handler may be
    raised where Python ignores it."""

    def end_both(number: int, frame: FrameType | None) -> None:
        _end(process)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    before = signal.signal(signal.SIGTERM, end_both)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
