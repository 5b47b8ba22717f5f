"""The tables of a ledger, and those of earlier versions brought up to date."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from vlm_app.ocr.documents.naming import FORMATS, folded
from vlm_app.ocr.ledger.database import Database, LedgerError

VERSION = 1  # kept in the file as `user_version`; 0: ledgers that knew no names
TABLES = (
    "CREATE TABLE IF NOT EXISTS job (name TEXT PRIMARY KEY, value TEXT)",
    """CREATE TABLE IF NOT EXISTS documents (
    id INTEGER PRIMARY KEY, path TEXT UNIQUE NOT NULL, stamp TEXT NOT NULL, created TEXT, digest TEXT,
    num_pages INTEGER, selection TEXT, pages TEXT, error_kind TEXT, error TEXT, name TEXT, name_key TEXT)""",
    """CREATE TABLE IF NOT EXISTS pages (
    document INTEGER NOT NULL REFERENCES documents (id), page INTEGER NOT NULL, state TEXT NOT NULL,
    text TEXT, raw_text TEXT, finish_reason TEXT, tokens INTEGER NOT NULL DEFAULT 0, error_kind TEXT, error TEXT,
    attempts INTEGER NOT NULL DEFAULT 1, PRIMARY KEY (document, page)) WITHOUT ROWID""",
    # what the job has put into the output folder; `holds`: which pages, NULL for what is not up to date
    "CREATE TABLE IF NOT EXISTS files (file TEXT PRIMARY KEY, document INTEGER NOT NULL, holds TEXT)",
)
INDEXES = (
    "CREATE UNIQUE INDEX IF NOT EXISTS names ON documents (name_key)",
    "CREATE INDEX IF NOT EXISTS files_of ON files (document)",
    "CREATE INDEX IF NOT EXISTS bad_pages ON pages (document) WHERE state != 'done'",
)
EXPECTED = {"id", "path", "stamp", "created", "digest", "num_pages", "selection", "pages"}  # in all versions


def prepare(database: Database, root: str) -> bool:
    """Makes what is missing; says whether the ledger is of an earlier version. `root`: the output folder, which
    outputs of those were told by. Raises LedgerError for what is no ledger, or of a later version."""
    with database.at_once():
        ((version,),) = database.rows("PRAGMA user_version")
        columns = {row[1] for row in database.rows("PRAGMA table_info(documents)")}
        if version > VERSION:
            raise LedgerError(database.path, f"is of a later version ({version})", "update vlm, or give another --out")
        if columns and not columns >= EXPECTED:
            raise LedgerError(database.path, "is no ledger of vlm ocr")
        is_old = bool(columns) and version == 0
        for statement in (*TABLES, *(_upgrade() if is_old else ()), *INDEXES):
            database.execute(statement)
        if is_old:
            _take_over_outputs(database, root)
        database.execute(f"PRAGMA user_version = {VERSION}")
    return is_old


def _upgrade() -> Iterator[str]:
    for column in ("name", "name_key"):
        yield f"ALTER TABLE documents ADD COLUMN {column} TEXT"


def _take_over_outputs(database: Database, root: str) -> None:
    """Notes outputs that stood as `/out/a.md all`. Where two documents tell of one, the later has written it."""
    owners: dict[str, tuple[int, str, str]] = {}
    query = "SELECT id, written FROM documents WHERE written IS NOT NULL ORDER BY id"
    pattern = re.compile(rf"{re.escape(root.rstrip('/'))}/((.*)\.(?:{'|'.join(FORMATS)})) (.*)", re.DOTALL)
    for document, text in database.rows(query):
        if match := pattern.fullmatch(text):
            owners[folded(match[2])] = (document, match[1], match[3])
    for name_key, (document, file, holds) in owners.items():
        name = str(PurePosixPath(file).with_suffix(""))
        database.execute("UPDATE documents SET name = ?, name_key = ? WHERE id = ?", (name, name_key, document))
        database.execute("INSERT INTO files VALUES (?, ?, ?)", (file, document, holds))
