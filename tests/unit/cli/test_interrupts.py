"""Ctrl-C, whatever the process is at."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

STUCK = """
import ctypes, signal
from vlm_app.core.processes import watchdog

watchdog.PATIENCE_SECONDS = 0.1
watchdog.Watchdog()
signal.signal(signal.SIGINT, lambda *_: None)  # what Python would do is not heard, be it that the lock comes later
print("ready", flush=True)
mutex, lock = ctypes.create_string_buffer(256), ctypes.CDLL(None).pthread_mutex_lock
lock(mutex)
lock(mutex)  # for ever
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no such lock")
def test_a_second_interrupt_ends_what_is_stuck_in_a_library():
    with subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline() == b"vlm: what runs is being ended; Ctrl-C again ends it at once.\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
