"""Progress on stderr: a bar on a terminal, else one line a step."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Call it as `progress(description, done, total)`; a new description is a new bar. `total` 0: unknown."""

    def __init__(self) -> None:
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, description: str, done: int, total: int, note: str = "") -> None:
        if sys.stderr.isatty():
            self._show(description, done, total, note)
        else:
            self._say(description, note)

    def _say(self, description: str, note: str) -> None:
        """Prints a line at the first call, and where there is a note every few seconds."""
        now = time.monotonic()
        if description not in self._tasks or (note and now - self._tasks[description] >= SECONDS_BETWEEN_LINES):
            self._tasks[description] = now
            print(f"{description}: {note}" if note else f"{description} ...", file=sys.stderr, flush=True)

    def _show(self, description: str, done: int, total: int, note: str) -> None:
        if self._bars is None:
            self._bars = _bars()
            self._bars.start()
        if description not in self._tasks:
            self._tasks[description] = self._bars.add_task(description, note="")
        self._bars.update(self._tasks[description], completed=done, total=total or None, note=note)


def _bars() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    return Bars(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True), transient=True)
