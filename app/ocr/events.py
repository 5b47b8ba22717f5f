"""What a job asks of a reader, and what readers answer, whatever runs them: values that processes can exchange."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from vlm_app.ocr.measures import Measures

TIMEOUT = "timeout"  # the kind of a page, or a document, that took too long
LOOP = "loop"  # the finish reason of a page whose text repeats itself, and the kind of that failure


@dataclass(frozen=True)
class Work:
    """A document to read: the `pages` of it ("1-4,7", from 1; None: all), less those that are `done_pages` (from 0)."""

    document: int  # its number in the ledger
    path: Path
    pages: str | None = None
    done_pages: frozenset[int] = frozenset()
    is_quick: bool = False  # what takes long fails at once: it is asked for again when all else has been read

    def due(self, pages: Iterable[int]) -> list[int]:
        """Returns those of the document's pages that have no answer yet."""
        return [page for page in pages if page not in self.done_pages]


@dataclass(frozen=True)
class Opened:
    """A document has been opened; comes before its pages."""

    document: int
    num_pages: int
    pages: tuple[int, ...]  # asked for, from 0
    digest: str  # of its content
    num_attachments: int = 0  # files in it, which are not read


@dataclass(frozen=True)
class Unreadable:
    """A document could not be opened."""

    document: int
    kind: str
    reason: str
    pages: str | None = None  # of the work that asked for it


@dataclass(frozen=True)
class PageRead:
    """A page's text."""

    document: int
    page: int  # from 0
    text: str
    raw_text: str
    finish_reason: str
    tokens: int


@dataclass(frozen=True)
class PageFailed:
    """A page that could not be rendered or read."""

    document: int
    page: int
    kind: str
    reason: str
    settings: tuple[str, ...] = ()  # that the reason names


@dataclass(frozen=True)
class Waiting:
    """Nothing has been read for a while; measures go on."""


Answer = Opened | Unreadable | PageRead | PageFailed
Event = Answer | Waiting


class Reader(Protocol):
    """Reads pages; `engines` of it run side by side."""

    engines: int

    def read(self, works: Iterable[Work], sampling: Mapping[str, Any], limit: int | None = None) -> Iterator[Event]:
        """Yields events as they come, documents and pages in any order. Works are pulled as room arises.

        `limit`: of the works' pages the first so many are read; works after these are not looked at.
        """
        ...

    def measures(self) -> Measures:
        """Returns what reading has cost so far and what goes on now; for the thread that reads."""
        ...

    def close(self) -> None: ...
