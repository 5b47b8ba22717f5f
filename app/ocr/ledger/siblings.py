"""The ledgers of other jobs that write to the same folder: its parts, of this number or another."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections import defaultdict
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any


class Siblings:
    """What the other ledgers of a folder tell, as the run found them: a job that comes to read the documents of others
    finds what these have written, with the same settings."""

    def __init__(self, ledger: Path, settings: Callable[[], Any]):
        self._ledger, self._settings = ledger, settings

    def outputs(self, source: str, stamp: str) -> dict[str, str]:
        """Returns the outputs of a document (its key) as it is now, and which pages each holds."""
        return self._outputs.get((source, stamp), {})

    @cached_property
    def _outputs(self) -> dict[tuple[str, str], dict[str, str]]:
        outputs: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
        for path in sorted(self._ledger.parent.glob("ledger*.sqlite")):
            if path.name != self._ledger.name:
                for source, stamp, file, holds in _rows(path, self._settings()):
                    outputs[source, stamp][file] = holds
        return outputs


def _rows(ledger: Path, settings: Any) -> list[tuple[str, str, str, str]]:
    """Reads a ledger without a lock, for another machine may be at work there; a ledger that cannot be read so tells
    nothing."""
    query = "SELECT path, stamp, file, holds FROM files JOIN documents ON id = document WHERE holds IS NOT NULL"
    with contextlib.suppress(sqlite3.Error, ValueError):
        uri = f"{ledger.absolute().as_uri()}?mode=ro&immutable=1"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as rows:
            begun = rows.execute("SELECT value FROM job WHERE name = 'settings'").fetchone()
            if (begun and json.loads(begun[0])) == settings:
                return rows.execute(query).fetchall()
    return []
