"""Why a sequence ended: the code that the device sets, and what users are told."""

from __future__ import annotations

RUNNING, STOP, LOOP, LENGTH = range(4)
FINISH_REASONS = ("", "stop", "loop", "length")  # by the device's finish code; 0 is running
