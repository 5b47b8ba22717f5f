"""Texts that lie in a folder: those of `vlm ocr`, or of any program under olmOCR-bench's names."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from vlm.artifacts.files import read_small
from vlm.errors import InputError
from vlm_app.ocr.checks.check_file import Entry
from vlm_app.ocr.checks.readings import Page, Reading, pages_by_document
from vlm_app.ocr.documents.naming import FORMATS

MOST_BYTES = 2**26  # of a file
COMMENT = re.compile(r"<!-- page \d+: .*?-->", re.DOTALL)  # what `vlm ocr` writes in place of a page


def read_texts(entries: Iterable[Entry], folder: Path) -> dict[Page, Reading]:
    """Returns the texts of pages; an error for a document without any. Raises InputError where none has a text, for a
    page that is not in a file of pages, and for a text of all pages where one of several is needed."""
    if not folder.is_dir():
        raise InputError(f"--texts {folder} is no folder; give what vlm ocr --out was.")
    readings: dict[Page, Reading] = {}
    missing = None
    for (of_checks, pdf), wanted in pages_by_document(entries).items():
        texts = _texts(folder, pdf, wanted)
        missing = missing or (None if texts else next(iter(wanted.values())))
        for page in wanted:
            reading = Reading(texts[page]) if texts else Reading((), f"there is no text of it in {folder}")
            readings[of_checks, pdf, page] = reading
    if missing and not any(reading.texts for reading in readings.values()):
        raise InputError(f"{missing.place} is about {missing.check.pdf}, of which, as of all others, there is no text"
                         f" in {folder}; {_names(missing.check.pdf)} are looked for.")  # fmt: skip
    return readings


def _names(pdf: str) -> str:
    stem = PurePosixPath(pdf).stem
    return ", ".join([*(f"{stem}.{format}" for format in FORMATS), f"{stem}_pg1_repeat1.md"])


def _texts(folder: Path, pdf: str, wanted: Mapping[int, Entry]) -> dict[int, tuple[str, ...]]:
    """Returns the texts of each page that is wanted; empty where the document has none."""
    stem = str(PurePosixPath(pdf).with_suffix(""))
    for name in (pdf, stem):
        if (path := folder / f"{name}.jsonl").is_file():
            return _of_records(path, wanted)
        for format in ("md", "mmd"):
            if (path := folder / f"{name}.{format}").is_file():
                return _of_whole(path, wanted)
    return _of_repeats(folder, stem, wanted)


def _of_records(path: Path, wanted: Mapping[int, Entry]) -> dict[int, tuple[str, ...]]:
    texts = dict(_records(path))
    for page, entry in wanted.items():
        if page not in texts:
            raise InputError(f"{entry.place} is about page {page}, which is not in {path}.")
    return {page: (texts[page],) for page in wanted}


def _records(path: Path) -> Iterator[tuple[int, str]]:
    """Yields pages of a file that `vlm ocr --format jsonl` has written."""
    for number, line in enumerate(_content(path).splitlines(), 1):
        try:
            record = json.loads(line)
            yield int(record["metadata"]["page"]), str(record["text"])
        except (ValueError, TypeError, KeyError, RecursionError):
            raise InputError(f"{path} line {number} is no page as vlm ocr --format jsonl writes it.") from None


def _of_whole(path: Path, wanted: Mapping[int, Entry]) -> dict[int, tuple[str, ...]]:
    for page, entry in wanted.items():
        if page > 1:
            raise InputError(f"{entry.place} is about page {page}, and {path} does not tell where pages end; write"
                             " texts with vlm ocr --format jsonl.")  # fmt: skip
    return {1: (COMMENT.sub("", _content(path)).strip(),)}


def _of_repeats(folder: Path, stem: str, wanted: Mapping[int, Entry]) -> dict[int, tuple[str, ...]]:
    """Returns texts under olmOCR-bench's names: document_pg1_repeat1.md."""
    paths = {page: sorted(folder.glob(f"{glob.escape(stem)}_pg{page}_repeat*.md")) for page in wanted}
    for page, entry in wanted.items():
        if any(paths.values()) and not paths[page]:
            raise InputError(f"{entry.place} is about page {page}, of which there is no text:"
                             f" {stem}_pg{page}_repeat1.md is not in {folder}.")  # fmt: skip
    return {page: tuple(map(_content, found)) for page, found in paths.items() if found}


def _content(path: Path) -> str:
    try:
        return read_small(path, MOST_BYTES).decode(errors="replace")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from None
