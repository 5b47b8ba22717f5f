"""How long work tells of itself: files that are read and written, models that are made, pages and requests."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]  # what is done, how much of it (bytes, steps, pages) by now, and in all
