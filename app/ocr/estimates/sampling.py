"""Which pages an estimate reads: some of each document, or of as many documents as there are pages to read."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from vlm.errors import VlmError
from vlm_app.core.storage import regular_file_state
from vlm_app.ocr.documents.naming import Document
from vlm_app.ocr.documents.pages import Renderer, opening, selected
from vlm_app.ocr.events import Work
from vlm_app.ocr.report import Failure

MOST_COUNTED = 2000  # documents that are opened to count their pages; of more, so many are drawn


@dataclass(frozen=True)
class Census:
    """How many pages documents have: all of them, or those that were drawn."""

    num_documents: int  # of which some may not have been drawn
    pages: Mapping[int, tuple[int, ...]]  # by the index of the document: those asked for, from 0
    failures: tuple[Failure, ...] = ()  # documents that cannot be opened

    @property
    def counts(self) -> list[int]:
        """Returns the number of pages of each document that was drawn, 0 for one that cannot be opened."""
        return [*map(len, self.pages.values()), *(0 for _ in self.failures)]

    @property
    def is_whole(self) -> bool:
        return len(self.counts) == self.num_documents


def take_census(documents: Sequence[Document], renderer: Renderer, pages: str | None, seed: int) -> Census:
    """Opens documents, or `MOST_COUNTED` of them drawn at random, to count the pages of a selection."""
    drawn = sorted(Random(seed).sample(range(len(documents)), min(MOST_COUNTED, len(documents))))
    counted, failures = dict[int, tuple[int, ...]](), list[Failure]()
    for work, future in opening(renderer, _regular(documents, drawn, failures)):
        try:
            counted[work.document] = selected(pages, future.result().num_pages)
        except VlmError as error:
            failures.append(Failure(work.path, None, str(error), error.kind))
    return Census(len(documents), dict(sorted(counted.items())), tuple(failures))


def draw_pages(census: Census, most: int, seed: int) -> dict[int, list[int]]:
    """Returns `most` pages, or all where there are fewer, by document.

    All pages in a row are cut into equal parts, and one is drawn from each: every page is as likely as any other, and
    a document has as large a part of the sample as of all pages. Documents come in random order: what is read first
    is no other kind of pages than what is read last.
    """
    random, documents = Random(seed), sorted(census.pages)
    starts = [0, *itertools.accumulate(len(census.pages[document]) for document in documents)]
    most = min(most, starts[-1])
    drawn: dict[int, list[int]] = {}
    for part in range(most):
        position = random.randrange(starts[-1] * part // most, starts[-1] * (part + 1) // most)
        index = bisect_right(starts, position) - 1
        drawn.setdefault(documents[index], []).append(census.pages[documents[index]][position - starts[index]])
    order = random.sample(sorted(drawn), len(drawn))
    return {document: drawn[document] for document in order}


def first_of(drawn: Mapping[int, Sequence[int]], count: int) -> dict[int, list[int]]:
    """Returns the first so many pages, by document."""
    first: dict[int, list[int]] = {}
    for document, page in itertools.islice(((d, page) for d, pages in drawn.items() for page in pages), count):
        first.setdefault(document, []).append(page)
    return first


def without(drawn: Mapping[int, Sequence[int]], known: Collection[tuple[int, int]]) -> dict[int, list[int]]:
    """Returns the pages, by document, but for those that are known."""
    rest = {document: [page for page in pages if (document, page) not in known] for document, pages in drawn.items()}
    return {document: pages for document, pages in rest.items() if pages}


def page_range(pages: Sequence[int]) -> str:
    """Returns what people call pages from 0."""
    return ",".join(str(page + 1) for page in pages)


def _regular(documents: Sequence[Document], indices: Sequence[int], failures: list[Failure]) -> Iterator[Work]:
    """Yields the documents that are files: a pipe would never end."""
    for index in indices:
        try:
            regular_file_state(documents[index].source)
        except VlmError as error:
            failures.append(Failure(documents[index].source, None, str(error), error.kind))
        else:
            yield Work(index, documents[index].source)
