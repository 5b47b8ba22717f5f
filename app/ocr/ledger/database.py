"""SQLite whose errors are sentences: what is wrong with the ledger, and the next step."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from vlm.errors import InputError

REMEDIES = {  # by what the names of SQLite's errors begin with
    "SQLITE_FULL": "make room there; the same command then goes on",
    "SQLITE_IOERR": "make room there or mend the disk; the same command then goes on",
    "SQLITE_BUSY": "close what else has it open; the same command then goes on",
    "SQLITE_READONLY": "make it writable, or give another --out",
    "SQLITE_CANTOPEN": "make its folder writable, or give another --out",
}
START_OVER = "remove it, and add --recompute to read all again"


class LedgerError(InputError):
    """The ledger cannot be read or written: no document can be read without it."""

    def __init__(self, path: Path, what: str, remedy: str = START_OVER):
        super().__init__(f"the ledger {path} {what}; {remedy}.")


class Database:
    """Opens a connection for one thread at a time. Raises LedgerError for all that SQLite refuses."""

    def __init__(self, path: Path):
        self.path = path
        with self._explained("used"):
            self._connection = sqlite3.connect(path, isolation_level=None)

    def close(self) -> None:
        self._connection.close()

    def execute(self, statement: str, values: Sequence[Any] = ()) -> None:
        with self._explained("written"):
            self._connection.execute(statement, values)

    def insert(self, statement: str, values: Sequence[Any]) -> int:
        """Runs a statement that inserts one row; returns the row's number."""
        with self._explained("written"):
            row = self._connection.execute(statement, values).lastrowid
        assert row is not None  # SQLite numbers every row
        return row

    def execute_all(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        with self._explained("written"):
            self._connection.executemany(statement, rows)

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._explained("read"):
            return self._connection.execute(query, values).fetchall()

    def row(self, query: str, values: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        return next(iter(self.rows(query, values)), None)

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Keeps all of what is written inside, or none of it."""
        if self._connection.in_transaction:
            yield
            return
        try:  # Ctrl-C may come when it has just begun
            self.execute("BEGIN IMMEDIATE")
            yield
            self.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # a full disk has ended it
                self._connection.execute("ROLLBACK")
            raise

    def save_as(self, path: Path) -> None:
        """Writes a copy, whole, while others go on."""
        with self._explained("copied"), contextlib.closing(sqlite3.connect(path)) as copy:
            self._connection.backup(copy)

    @contextlib.contextmanager
    def _explained(self, verb: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", None) or ""
            remedy = next((step for start, step in REMEDIES.items() if name.startswith(start)), START_OVER)
            raise LedgerError(self.path, f"cannot be {verb}: {error}", remedy) from error
