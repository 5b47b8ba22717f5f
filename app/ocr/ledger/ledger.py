"""What a job has done, page by page: a SQLite file in the output folder, written as each page comes.

A page that stands here is never read again, whatever ends the job. Documents are known by their content.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from vlm_app.core.names import printable
from vlm_app.core.storage import FileState, key
from vlm_app.ocr.documents.naming import folded
from vlm_app.ocr.events import LOOP, Opened, PageFailed, PageRead, Unreadable
from vlm_app.ocr.ledger.database import Database, LedgerError
from vlm_app.ocr.ledger.schema import prepare
from vlm_app.ocr.ledger.siblings import Siblings

DONE, LOOPED, FAILED = "done", "looped", "failed"  # states of a page
RESET = (
    "UPDATE documents SET digest = NULL, num_pages = NULL, selection = NULL, pages = NULL, error_kind = NULL,"
    " error = NULL"
)
OUTDATE = "UPDATE files SET holds = NULL"


@dataclass(frozen=True)
class Record:
    """A document's row."""

    id: int
    path: str
    stamp: str  # see vlm_app.core.storage.FileState
    created: str  # when the file was written last
    digest: str | None
    num_pages: int | None
    selection: str | None  # the page range that was asked for
    name: str | None  # of its output, without suffix, below the output folder
    pages: tuple[int, ...] | None  # which pages the range is, from 0; None: never opened


COLUMNS = tuple(field.name for field in fields(Record))


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


PAGE_COLUMNS = tuple(field.name for field in fields(Page))
OUTCOME = PAGE_COLUMNS[1:-1]  # what an attempt writes


class Ledger:
    """One job's. For one thread of one process at a time; others may look in."""

    def __init__(self, path: Path, root: str | None = None):
        """`root`: the key of the output folder, which ledgers of earlier versions need; None: where `path` lies."""
        self.after_page: Callable[[], None] = lambda: None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LedgerError(path, f"cannot be used: {error.strerror}", "give another --out") from None
        self._database = Database(path)
        self.siblings = Siblings(path, lambda: self.get("settings"))
        try:
            self._database.rows("PRAGMA journal_mode = WAL")
            # safe from a kill; a power cut may take the last pages, never the file
            self._database.execute("PRAGMA synchronous = NORMAL")
            self.is_old = prepare(self._database, root or key(path.parent.parent))
        except LedgerError:
            self.close()
            raise

    def close(self) -> None:
        self._database.close()

    def at_once(self) -> contextlib.AbstractContextManager[None]:
        """Keeps all of what is written inside, or none of it."""
        return self._database.at_once()

    def get(self, name: str) -> Any:
        """Returns a value of the job's own; None where there is none."""
        row = self._database.row("SELECT value FROM job WHERE name = ?", (name,)) or ("null",)
        return json.loads(row[0])

    def put(self, values: Mapping[str, Any]) -> None:
        rows = [(name, json.dumps(value)) for name, value in values.items()]
        with self.at_once():
            self._database.execute_all("INSERT OR REPLACE INTO job VALUES (?, ?)", rows)

    def clear(self) -> None:
        """Forgets all but the names of the outputs."""
        with self.at_once():
            for statement in ("DELETE FROM pages", "DELETE FROM job", RESET, OUTDATE):
                self._database.execute(statement)

    def register(self, path: str, state: FileState) -> int:
        """Enters a document that is to be read; returns its number."""
        values = (path, state.stamp, state.modified)
        return self._database.insert("INSERT INTO documents (path, stamp, created) VALUES (?, ?, ?)", values)

    def find(self, path: str) -> Record | None:
        return self._record("path = ?", path)

    def record(self, document: int) -> Record:
        """Returns the row of a document that is registered."""
        record = self._record("id = ?", document)
        assert record is not None, document
        return record

    def _record(self, where: str, value: Any) -> Record | None:
        row = self._database.row(f"SELECT {', '.join(COLUMNS)} FROM documents WHERE {where}", (value,))
        if row is None:
            return None
        values = dict(zip(COLUMNS, row, strict=True))
        pages = values["pages"] and tuple(json.loads(values["pages"]))
        return Record(**{**values, "pages": pages})

    def restamp(self, document: int, state: FileState) -> None:
        """Notes that the file was written again."""
        change = "UPDATE documents SET stamp = ?, created = ? WHERE id = ?"
        self._database.execute(change, (state.stamp, state.modified, document))

    def forget(self, document: int) -> None:
        """Forgets all of a document but that it is to be read."""
        with self.at_once():
            self._database.execute("DELETE FROM pages WHERE document = ?", (document,))
            self._database.execute(f"{RESET} WHERE id = ?", (document,))
            self._database.execute(f"{OUTDATE} WHERE document = ?", (document,))

    def opened(self, event: Opened, selection: str | None) -> None:
        values = (event.digest, event.num_pages, selection, json.dumps(event.pages), event.document)
        changes = "digest = ?, num_pages = ?, selection = ?, pages = ?, error_kind = NULL, error = NULL"
        self._database.execute(f"UPDATE documents SET {changes} WHERE id = ?", values)

    def unreadable(self, event: Unreadable) -> None:
        values = (event.kind, printable(event.reason), event.document)
        self._database.execute("UPDATE documents SET error_kind = ?, error = ? WHERE id = ?", values)

    def pages(self, document: int) -> dict[int, Page]:
        """Returns what is known of a document's pages, in order."""
        columns = ", ".join(PAGE_COLUMNS)
        rows = self._database.rows(f"SELECT {columns} FROM pages WHERE document = ? ORDER BY page", (document,))
        return {row[0]: Page(**dict(zip(PAGE_COLUMNS, row, strict=True))) for row in rows}

    def bad_pages(self) -> Iterator[tuple[int, Page]]:
        """Yields the pages that could not be read, or that repeat themselves, each with its document; in order."""
        query = f"SELECT document, {', '.join(PAGE_COLUMNS)} FROM pages WHERE state != '{DONE}' ORDER BY document, page"
        for document, *row in self._database.rows(query):
            yield document, Page(**dict(zip(PAGE_COLUMNS, row, strict=True)))

    def attempts(self, document: int) -> dict[int, tuple[str, int]]:
        """Returns the state and the attempts of a document's pages, without their texts."""
        rows = self._database.rows("SELECT page, state, attempts FROM pages WHERE document = ?", (document,))
        return {page: (state, attempts) for page, state, attempts in rows}

    def page_read(self, event: PageRead) -> None:
        """Writes a page's text. Where it loops again, what the first attempt read stays."""
        row = {"state": LOOPED if event.finish_reason == LOOP else DONE, "text": event.text, "raw_text": event.raw_text}
        self._commit(event.document, event.page, row | {"finish_reason": event.finish_reason, "tokens": event.tokens})

    def page_failed(self, event: PageFailed) -> None:
        """Notes a failure. A page that looped before keeps what was read."""
        row = {"state": FAILED, "tokens": 0, "error_kind": event.kind, "error": printable(event.reason)}
        self._commit(event.document, event.page, row)

    def _commit(self, document: int, page: int, row: Mapping[str, Any]) -> None:
        """Writes what an attempt at a page gave: of these columns the values, NULL of the others."""
        better = ", ".join(f"{name} = excluded.{name}" for name in OUTCOME)
        with self.at_once():
            previous = self._database.row("SELECT state FROM pages WHERE document = ? AND page = ?", (document, page))
            keep = previous and previous[0] == LOOPED and row["state"] != DONE
            self._database.execute(
                f"INSERT INTO pages (document, page, {', '.join(OUTCOME)}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
                f" ON CONFLICT DO UPDATE SET attempts = attempts + 1{'' if keep else ', ' + better}",
                (document, page, *map(row.get, OUTCOME)),
            )
        self.after_page()

    def exhaust(self, document: int, attempts: int) -> None:
        """Ends the attempts at looped pages of a document that cannot be opened any more."""
        values = (attempts, document, LOOPED)
        self._database.execute("UPDATE pages SET attempts = ? WHERE document = ? AND state = ?", values)

    # --- outputs ---
    def has_name(self, name: str) -> bool:
        """Says whether a document's output has this name, or one that a file system may not tell from it."""
        return bool(self._database.row("SELECT 1 FROM documents WHERE name_key = ?", (folded(name),)))

    def set_name(self, document: int, name: str) -> None:
        values = (name, folded(name), document)
        self._database.execute("UPDATE documents SET name = ?, name_key = ? WHERE id = ?", values)

    def names(self) -> list[str]:
        """Returns the names of all outputs, of this run or of earlier ones."""
        return [name for (name,) in self._database.rows("SELECT name FROM documents WHERE name IS NOT NULL")]

    def file(self, file: str) -> tuple[int, str | None] | None:
        """Says whose an output is, and which pages it holds (None: not as they were read last); None: not the job's."""
        return self._database.row("SELECT document, holds FROM files WHERE file = ?", (file,))

    def put_file(self, file: str, document: int, holds: str | None) -> None:
        self._database.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", (file, document, holds))

    def drop_file(self, file: str) -> None:
        self._database.execute("DELETE FROM files WHERE file = ?", (file,))

    def is_written(self, document: int) -> bool:
        """Says whether there is an output of what was read last."""
        return bool(self._database.row("SELECT 1 FROM files WHERE document = ? AND holds IS NOT NULL", (document,)))

    def save_as(self, path: Path) -> None:
        """Writes a copy, whole, while the job goes on."""
        self._database.save_as(path)
