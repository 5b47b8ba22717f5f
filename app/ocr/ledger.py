"""What a job has done, page by page: a SQLite file in the output folder, written as each page comes.

A page that stands here is never read again, whatever ends the job. Documents are known by their content.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlm.errors import InputError
from vlm_app.ocr.events import LOOP, Opened, PageFailed, PageRead, Unreadable
from vlm_app.storage import Seen

SCHEMA = """
CREATE TABLE IF NOT EXISTS job (name TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS documents (
    id INTEGER PRIMARY KEY, path TEXT UNIQUE NOT NULL, stamp TEXT NOT NULL, created TEXT, digest TEXT,
    num_pages INTEGER, selection TEXT, pages TEXT, written TEXT, error_kind TEXT, error TEXT);
CREATE TABLE IF NOT EXISTS pages (
    document INTEGER NOT NULL REFERENCES documents (id), page INTEGER NOT NULL, state TEXT NOT NULL,
    text TEXT, raw_text TEXT, finish_reason TEXT, tokens INTEGER NOT NULL DEFAULT 0, error_kind TEXT, error TEXT,
    attempts INTEGER NOT NULL DEFAULT 1, PRIMARY KEY (document, page)) WITHOUT ROWID;
"""
DONE, LOOPED, FAILED = "done", "looped", "failed"  # states of a page


@dataclass(frozen=True)
class Record:
    """A document's row."""

    id: int
    path: str
    stamp: str  # see vlm_app.storage.Seen
    created: str  # when the file was written last
    digest: str | None
    num_pages: int | None
    selection: str | None  # the page range that was asked for
    written: str | None  # what its output file holds and how it is called; None: there is none
    pages: tuple[int, ...] | None  # which pages the range is, from 0; None: never opened


@dataclass(frozen=True)
class Page:
    """A page's row."""

    page: int  # from 0
    state: str
    text: str | None
    raw_text: str | None
    finish_reason: str | None
    tokens: int
    error_kind: str | None
    error: str | None
    attempts: int


class Ledger:
    """One job's. For one thread of one process at a time; others may look in."""

    def __init__(self, path: Path):
        self._path = path
        self.after_page: Callable[[], None] = lambda: None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._rows = sqlite3.connect(path, isolation_level=None)
            self._rows.execute("PRAGMA journal_mode = WAL")
            # safe from a kill; a power cut may take the last pages, never the file
            self._rows.execute("PRAGMA synchronous = NORMAL")
            self._rows.executescript(SCHEMA)
        except (sqlite3.DatabaseError, OSError) as error:
            raise InputError(f"the ledger {path} cannot be used ({error}); remove it to start anew.") from None

    def close(self) -> None:
        self._rows.close()

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """All of what is written inside, or none of it."""
        if self._rows.in_transaction:
            yield
            return
        try:
            self._rows.execute("BEGIN IMMEDIATE")
            yield
            self._rows.execute("COMMIT")
        except BaseException as error:
            if self._rows.in_transaction:
                self._rows.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise InputError(f"the ledger {self._path} cannot be written: {error}.") from error
            raise

    def get(self, name: str) -> Any:
        """A value of the job's own; None where there is none."""
        row = self._rows.execute("SELECT value FROM job WHERE name = ?", (name,)).fetchone() or ("null",)
        return json.loads(row[0])

    def put(self, values: Mapping[str, Any]) -> None:
        rows = [(name, json.dumps(value)) for name, value in values.items()]
        with self.at_once():
            self._rows.executemany("INSERT OR REPLACE INTO job VALUES (?, ?)", rows)

    def clear(self) -> None:
        with self.at_once():
            for name in ("pages", "documents", "job"):
                self._rows.execute(f"DELETE FROM {name}")

    def register(self, path: str, seen: Seen) -> int:
        """A document that is to be read -> its number."""
        values = (path, seen.stamp, seen.modified)
        return self._rows.execute("INSERT INTO documents (path, stamp, created) VALUES (?, ?, ?)", values).lastrowid

    def find(self, path: str) -> Record | None:
        return self._record("path = ?", path)

    def record(self, document: int) -> Record:
        return self._record("id = ?", document)  # of one that is registered

    def _record(self, where: str, value: Any) -> Record | None:
        columns = "id, path, stamp, created, digest, num_pages, selection, written, pages"
        row = self._rows.execute(f"SELECT {columns} FROM documents WHERE {where}", (value,)).fetchone()
        return Record(*row[:-1], row[-1] and tuple(json.loads(row[-1]))) if row else None

    def restamp(self, document: int, seen: Seen) -> None:
        """The file was written anew."""
        change = "UPDATE documents SET stamp = ?, created = ? WHERE id = ?"
        self._rows.execute(change, (seen.stamp, seen.modified, document))

    def forget(self, document: int) -> None:
        """Nothing is known of the document any more but that it is to be read."""
        with self.at_once():
            self._rows.execute("DELETE FROM pages WHERE document = ?", (document,))
            columns = "digest num_pages selection pages written error_kind error".split()
            reset = ", ".join(f"{name} = NULL" for name in columns)
            self._rows.execute(f"UPDATE documents SET {reset} WHERE id = ?", (document,))

    def opened(self, event: Opened, selection: str | None) -> None:
        values = (event.digest, event.num_pages, selection, json.dumps(event.pages), event.document)
        changes = "digest = ?, num_pages = ?, selection = ?, pages = ?, error_kind = NULL, error = NULL"
        self._rows.execute(f"UPDATE documents SET {changes} WHERE id = ?", values)

    def unreadable(self, event: Unreadable) -> None:
        values = (event.kind, event.reason, event.document)
        self._rows.execute("UPDATE documents SET error_kind = ?, error = ? WHERE id = ?", values)

    def written(self, document: int, what: str | None) -> None:
        """The output file is in place, or has gone."""
        self._rows.execute("UPDATE documents SET written = ? WHERE id = ?", (what, document))

    def pages(self, document: int) -> dict[int, Page]:
        """What is known of a document's pages, in order."""
        columns = "page, state, text, raw_text, finish_reason, tokens, error_kind, error, attempts"
        rows = self._rows.execute(f"SELECT {columns} FROM pages WHERE document = ? ORDER BY page", (document,))
        return {row[0]: Page(*row) for row in rows}

    def attempts(self, document: int) -> dict[int, tuple[str, int]]:
        """State and attempts of a document's pages, without their texts."""
        rows = self._rows.execute("SELECT page, state, attempts FROM pages WHERE document = ?", (document,))
        return {page: (state, attempts) for page, state, attempts in rows}

    def page_read(self, event: PageRead) -> None:
        """A page's text. Where it loops again, what the first attempt read stays."""
        state = LOOPED if event.finish_reason == LOOP else DONE
        found = (state, event.text, event.raw_text, event.finish_reason, event.tokens)
        self._commit(event.document, event.page, *found, None, None)

    def page_failed(self, event: PageFailed) -> None:
        """One that looped before keeps what was read."""
        self._commit(event.document, event.page, FAILED, None, None, None, 0, event.kind, event.reason)

    def _commit(self, *row: Any) -> None:
        columns = "document, page, state, text, raw_text, finish_reason, tokens, error_kind, error"
        better = ", ".join(f"{name} = excluded.{name}" for name in columns.split(", ")[2:])
        with self.at_once():
            known = self._rows.execute("SELECT state FROM pages WHERE document = ? AND page = ?", row[:2]).fetchone()
            keep = known and known[0] == LOOPED and row[2] != DONE
            self._rows.execute(
                f"INSERT INTO pages ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
                f" attempts = attempts + 1{'' if keep else ', ' + better}",
                row,
            )
        self.after_page()

    def exhaust(self, document: int, attempts: int) -> None:
        """Looped pages of a document that cannot be opened any more are tried no further."""
        values = (attempts, document, LOOPED)
        self._rows.execute("UPDATE pages SET attempts = ? WHERE document = ? AND state = ?", values)

    def save_as(self, path: Path) -> None:
        """A copy, whole, while the job goes on."""
        with contextlib.closing(sqlite3.connect(path)) as copy:
            self._rows.backup(copy)
