"""The ledgers of other jobs that write to the same folder: its parts, of this number or another."""

from __future__ import annotations

import contextlib
import sqlite3
from functools import cached_property
from pathlib import Path


class Siblings:
    """Looked into only where a file is in the way, for a job that reads the documents of others finds their outputs."""

    def __init__(self, ledger: Path):
        self._ledger = ledger

    def holds(self, file: str, source: str) -> str | None:
        """Returns which pages of a document (its key) an output holds; None where no other ledger tells."""
        return self._outputs.get((file, source))

    @cached_property
    def _outputs(self) -> dict[tuple[str, str], str]:
        found: dict[tuple[str, str], str] = {}
        for path in sorted(self._ledger.parent.glob("ledger*.sqlite")):
            if path.name != self._ledger.name:
                found.update(_outputs_of(path))
        return found


def _outputs_of(ledger: Path) -> dict[tuple[str, str], str]:
    """What a ledger tells that another machine may be writing to: no lock is taken, and what is unreadable is left."""
    query = "SELECT file, path, holds FROM files JOIN documents ON id = document WHERE holds IS NOT NULL"
    with contextlib.suppress(sqlite3.Error):
        uri = f"{ledger.absolute().as_uri()}?mode=ro&immutable=1"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as rows:
            return {(file, path): holds for file, path, holds in rows.execute(query)}
    return {}
