"""Documents to read: seeded files of each kind, so many at once that a benchmark does not wait for them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from vlm.artifacts.progress import Progress
from vlm.backends.threads import usable_cpus
from vlm_app.bench.pages.layout import Line, Page, label, table_page, text_page
from vlm_app.bench.pages.pdf import pdf_of_jpegs, pdf_of_pages
from vlm_app.bench.pages.pictures import Pictures
from vlm_app.bench.pages.words import Prose


@dataclass(frozen=True)
class Content:
    """What a document is to hold. One of page images is a file a page."""

    name: str  # `00003-scan`: kinds take turns when files are read by name
    number: int
    pages: int
    seed: str
    pictures: Pictures

    @property
    def labels(self) -> list[Line]:
        """Returns the first line of each page, which no other page has."""
        return [label(f"{self.name} of {self.seed}", page) for page in range(self.pages)]

    def prose(self, page: int) -> Prose:
        return Prose(f"{self.seed}/{self.name}/{page}")

    def each(self, make: Callable[[int, Line], bytes]) -> Iterator[bytes]:
        """Yields a picture of every page."""
        return (make(self.number + page, line) for page, line in enumerate(self.labels))


@dataclass(frozen=True)
class Corpus:
    """Documents that lie in a folder."""

    folder: Path
    pages: int
    bytes_per_page: dict[str, int]  # by kind, mean


def write_documents(
    folder: Path,
    *,
    kinds: tuple[str, ...],
    documents: int,
    pages: int,
    seed: str,
    progress: Progress = lambda *_: None,
) -> Corpus:
    """Writes so many documents of so many pages, kinds by turns; the same arguments give the same bytes."""
    folder.mkdir(parents=True)
    turns, pictures = list(itertools.islice(itertools.cycle(kinds), documents)), Pictures(seed)

    def write(number: int) -> int:
        kind = turns[number]
        return _write(folder, kind, Content(f"{number:05}-{kind}", number, pages, seed, pictures))

    sizes: dict[str, list[int]] = {kind: [] for kind in turns}
    with ThreadPoolExecutor(usable_cpus()) as threads:
        for number, size in enumerate(threads.map(write, range(documents))):
            sizes[turns[number]].append(size)
            progress("Making documents", number + 1, documents)
    means = {kind: sum(each) // (len(each) * pages) for kind, each in sizes.items()}
    return Corpus(folder, documents * pages, means)


def _write(folder: Path, kind: str, content: Content) -> int:
    """Returns how many bytes were written."""
    size = 0
    for name, data in WRITERS[kind](content):
        size += (folder / name).write_bytes(data)
    return size


def _laid_out(content: Content, lay_out: Callable[[Prose], Page]) -> Iterator[tuple[str, bytes]]:
    pages = [lay_out(content.prose(page)) for page in range(content.pages)]
    for page, first_line in zip(pages, content.labels, strict=True):
        page.lines.insert(0, first_line)
    yield f"{content.name}.pdf", pdf_of_pages(pages)


def _text(content: Content) -> Iterator[tuple[str, bytes]]:
    return _laid_out(content, text_page)


def _table(content: Content) -> Iterator[tuple[str, bytes]]:
    return _laid_out(content, table_page)


def _scan(content: Content) -> Iterator[tuple[str, bytes]]:
    yield f"{content.name}.pdf", pdf_of_jpegs(content.each(content.pictures.scanned))


def _photo(content: Content) -> Iterator[tuple[str, bytes]]:
    yield f"{content.name}.pdf", pdf_of_jpegs(content.each(content.pictures.photographed))


def _png(content: Content) -> Iterator[tuple[str, bytes]]:
    for page, data in enumerate(content.each(content.pictures.rendered)):
        yield f"{content.name}-{page:04}.png", data


def _jpeg(content: Content) -> Iterator[tuple[str, bytes]]:
    for page, data in enumerate(content.each(content.pictures.scanned)):
        yield f"{content.name}-{page:04}.jpeg", data


WRITERS: dict[str, Callable[[Content], Iterator[tuple[str, bytes]]]] = {
    "text": _text,
    "scan": _scan,
    "table": _table,
    "photo": _photo,
    "png": _png,
    "jpeg": _jpeg,
}
