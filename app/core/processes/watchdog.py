"""Ends a process that was told to end and does not, whatever hangs in it."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time

INTERRUPTED = 130
BROKEN = 0  # no signal's number
PATIENCE_SECONDS = 3.0  # until a user is told that a process is still ending
LAST_RESORT_SECONDS = 60  # later the kernel ends what keeps even this thread from running


class Watchdog:
    """Gives the process `seconds` to end after the first SIGTERM or SIGINT, or as long as it takes; a second SIGINT
    ends it at once.

    Signals come through a socket into a thread of its own, so that it hears them while the main thread is stuck. Made
    in the main thread, and never ended: Python's own exit may hang, too.
    """

    def __init__(self, seconds: float = math.inf):
        self._seconds, self._exit_code = seconds, 0
        self._inbox, self._outbox = socket.socketpair()
        self._outbox.setblocking(False)
        signal.set_wakeup_fd(self._outbox.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def end(self, exit_code: int) -> None:
        """Begins the end of the process for another reason than a signal."""
        self._exit_code = exit_code
        self._outbox.send(bytes([BROKEN]))

    def _watch(self) -> None:
        if self._next() == signal.SIGINT:
            self._exit_code = INTERRUPTED
        if math.isfinite(self._seconds):
            signal.alarm(math.ceil(self._seconds) + LAST_RESORT_SECONDS)
        end, is_told = time.monotonic() + self._seconds, math.isfinite(self._seconds)
        while (seconds_left := end - time.monotonic()) > 0:
            if self._next(min(seconds_left, PATIENCE_SECONDS)) == signal.SIGINT:
                self._kill(INTERRUPTED)
            if not is_told:
                print("vlm: what runs is being ended; Ctrl-C again ends it at once.", file=sys.stderr, flush=True)
                is_told = True
        print("vlm: what ran did not end in time; it was cut off.", file=sys.stderr, flush=True)
        self._kill(self._exit_code)

    def _next(self, seconds: float | None = None) -> int | None:
        """Returns the next that says to end."""
        self._inbox.settimeout(seconds)
        try:
            while (number := self._inbox.recv(1)[0]) not in (signal.SIGTERM, signal.SIGINT, BROKEN):
                pass
        except TimeoutError:
            return None
        return number

    def _kill(self, exit_code: int) -> None:
        for child in multiprocessing.active_children():
            child.kill()
        os._exit(exit_code)
