"""What was read of the pages that checks are about: by a model now, or in a folder of texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlm.errors import InputError, VlmError
from vlm_app.ocr.checks.check_file import Entry
from vlm_app.ocr.documents.open_document import OpenDocument
from vlm_app.ocr.events import Event, PageFailed, PageRead, Reader, Unreadable, Work

PDFS = "pdfs"  # the folder of the documents in olmOCR-bench
Page = tuple[Path, str, int]  # folder of the checks' file, document, number from 1


@dataclass(frozen=True)
class Reading:
    """The texts of a page, more than one where it was read several times; none, and why, where it was not."""

    texts: tuple[str, ...]
    error: str = ""


def page_of(entry: Entry) -> Page:
    return entry.file.parent, entry.check.pdf, entry.check.page


def pages_by_document(entries: Iterable[Entry]) -> dict[tuple[Path, str], dict[int, Entry]]:
    """Returns the pages that checks are about, each with its first check."""
    documents: dict[tuple[Path, str], dict[int, Entry]] = {}
    for entry in entries:
        folder, pdf, page = page_of(entry)
        documents.setdefault((folder, pdf), {}).setdefault(page, entry)
    return documents


@dataclass(frozen=True)
class Documents:
    """The files that checks are about. Raises InputError for one that is not there, and for a page it does not have."""

    works: tuple[Work, ...]
    pages: tuple[tuple[Page, ...], ...]  # of each work

    @classmethod
    def found(cls, entries: Iterable[Entry], folder: Path | None) -> Documents:
        works, pages = list[Work](), list[tuple[Page, ...]]()
        for (of_checks, pdf), wanted in pages_by_document(entries).items():
            path = _document(next(iter(wanted.values())), folder or of_checks)
            _check_pages(path, wanted)
            works.append(Work(len(works), path, ",".join(map(str, sorted(wanted)))))
            pages.append(tuple((of_checks, pdf, page) for page in wanted))
        return cls(tuple(works), tuple(pages))

    def read(
        self, reader: Reader, sampling: Mapping[str, Any], on_page: Callable[[int, int], None]
    ) -> dict[Page, Reading]:
        """Reads the pages as `vlm ocr` does, once each; `on_page` is told how many of all have been read."""
        readings = dict.fromkeys((page for pages in self.pages for page in pages), Reading((), "it was not read"))
        for count, (page, reading) in enumerate(self._read(reader, sampling), 1):
            readings[page] = reading
            on_page(count, len(readings))
        return readings

    def _read(self, reader: Reader, sampling: Mapping[str, Any]) -> Iterator[tuple[Page, Reading]]:
        for event in reader.read(self.works, sampling):
            for page in self._pages_of(event):
                is_read = isinstance(event, PageRead)
                yield page, Reading((event.text,)) if is_read else Reading((), getattr(event, "reason", ""))

    def _pages_of(self, event: Event) -> list[Page]:
        """Returns the pages of which an event tells the end."""
        if isinstance(event, Unreadable):
            return list(self.pages[event.document])
        if isinstance(event, PageRead | PageFailed):
            return [page for page in self.pages[event.document] if page[-1] == event.page + 1]
        return []


def _document(entry: Entry, folder: Path) -> Path:
    for path in (folder / entry.check.pdf, folder / PDFS / entry.check.pdf):
        if path.is_file():
            return path
    where = f"{folder} and {folder / PDFS}"
    raise InputError(f"{entry.place} is about {entry.check.pdf}, which is not in {where}; give --documents.")


def _check_pages(path: Path, wanted: Mapping[int, Entry]) -> None:
    """Looks into documents of which more than the first page, which each has, is wanted."""
    last = max(wanted)
    if last == 1:
        return
    try:
        count = OpenDocument(path).num_pages
    except VlmError:
        return  # the reader tells why
    if last > count:
        raise InputError(f"{wanted[last].place} is about page {last} of {path}, which has {count}.")
