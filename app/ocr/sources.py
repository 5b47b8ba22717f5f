"""What a job reads: paths and folders -> documents, where each one's text goes, and its pages, rendered when due."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlm.errors import DocumentError, InputError, VlmError, listed

if TYPE_CHECKING:
    from PIL.Image import Image

    from vlm.processing.documents import Document

MOST_PAGES = 100_000  # of a document


@dataclass(frozen=True)
class Source:
    """A document and the folder part of its output: where it lay below the folder that was given."""

    path: Path
    below: Path = Path()


@dataclass(frozen=True)
class Target:
    """A document and the file that its text goes to."""

    source: Path
    out: Path


def find_documents(paths: Iterable[Path]) -> list[Source]:
    """Files as they are given, folders searched through for images and PDFs; sorted, each once.

    Raises InputError for a path that does not exist, and when there is nothing to read.
    """
    from vlm.processing.documents import supported_suffixes

    paths = [Path(path) for path in paths]
    if missing := [path for path in paths if not path.exists()]:
        raise InputError(f"{missing[0]} does not exist; give images, PDFs or folders of them.")
    found: dict[Path, Source] = {}
    for path in paths:
        for source in _inside(path) if path.is_dir() else [Source(path)]:
            found.setdefault(source.path.resolve(), source)
    if not found:
        raise InputError(f"there is no document in {listed(paths)}; read are {supported_suffixes()}.")
    return list(found.values())


def _inside(folder: Path) -> Iterator[Source]:
    from vlm.processing.documents import is_document

    for where, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = Path(where, name)
            if not name.startswith(".") and is_document(path):
                yield Source(path, Path(where).relative_to(folder))


def plan_outputs(sources: Iterable[Source], out: Path, suffix: str) -> list[Target]:
    """One output file a document: `report.pdf` -> `report.md`; names that would clash (a.png and a.pdf) keep their old
    suffix (`a.png.md`), and documents that still clash are numbered in order (`a.png.2.md`)."""
    sources = list(sources)
    stems = Counter(_key(source, source.path.stem) for source in sources)
    taken: set[str] = set()
    targets = []
    for source in sources:
        unique = stems[_key(source, source.path.stem)] == 1
        name = _free(source, source.path.stem if unique else source.path.name, taken)
        targets.append(Target(source.path, out / source.below / f"{name}{suffix}"))
    return targets


def _free(source: Source, name: str, taken: set[str]) -> str:
    chosen, number = name, 1
    while _key(source, chosen) in taken:
        number += 1
        chosen = f"{name}.{number}"
    taken.add(_key(source, chosen))
    return chosen


def _key(source: Source, name: str) -> str:
    # some file systems do not tell `A.md` from `a.md`
    return str(source.below / name).casefold()


class OpenDocument:
    """A document whose pages may be rendered by several threads: pdfium works in one at a time, and closes in one.

    Raises DocumentError or ImageError when it is opened and when a page is rendered.
    """

    def __init__(self, path: Path):
        from vlm.processing.documents import PdfDocument, open_document

        self._lock = _PDFIUM
        with _PDFIUM:
            self._document: Document | None = open_document(path)
            self.num_pages = self._document.num_pages
        if not isinstance(self._document, PdfDocument):
            self._lock = contextlib.nullcontext()
        self.path = path

    def render(self, page: int) -> Image:
        """A page (from 0) in RGB."""
        try:
            with self._lock:
                return self._document.render(page)
        except VlmError:
            raise
        except Exception as error:  # whatever a renderer trips over costs this page, not the job
            raise DocumentError(f"{self.path} page {page + 1} cannot be rendered: {error}.") from error

    def __del__(self) -> None:
        with self._lock:
            self._document = None


_PDFIUM = threading.RLock()  # reentrant: a collection may run __del__ in the middle of a rendering


class PageInput(Mapping[str, Any]):
    """One page as a pipeline's input. It is rendered when a worker thread looks it up: pages that are not yet due cost
    neither memory nor the engine's time."""

    def __init__(self, document: OpenDocument, page: int):
        self._document, self._page = document, page

    def __getitem__(self, key: str) -> list[Any]:
        if key != "images":
            raise KeyError(key)
        return [self._document.render(self._page)]

    def __iter__(self) -> Iterator[str]:
        return iter(("images",))

    def __len__(self) -> int:
        return 1


def open_pages(path: Path, pages: str | None) -> tuple[OpenDocument, list[int]]:
    """A document and the indices of the pages asked for; DocumentError or ImageError."""
    from vlm.processing.documents import parse_pages

    document = OpenDocument(path)
    return document, parse_pages(pages, document.num_pages) if pages else list(range(document.num_pages))


def check_pages(pages: str | None) -> None:
    """Finds a page range that suits no document, before any is opened."""
    from vlm.processing.documents import parse_pages

    try:
        parse_pages(pages or "1", MOST_PAGES)
    except DocumentError:
        raise InputError(f"--pages is {pages!r}; write 1-4,7, or 5- for all from the fifth.") from None
