"""The text of a document's output, of the pages that are known of it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vlm_app.core.names import as_text
from vlm_app.ocr.documents.naming import FORMATS
from vlm_app.ocr.ledger.ledger import FAILED, LOOPED, Page

SOURCE = "vlm-ocr"  # of a record, in Dolma's sense


@dataclass(frozen=True)
class About:
    """Where a text comes from, for its records."""

    digest: str = ""  # of the document's content
    num_pages: int = 0
    created: str = ""  # when the document was written, ISO 8601
    date: str = ""  # the day on which the job was begun
    model: str = ""


@dataclass
class Draft:
    """A document under way: the pages (from 0) that were asked for, and what came of them so far."""

    source: Path
    pages: tuple[int, ...]
    results: dict[int, Page] = field(default_factory=dict)
    about: About = field(default_factory=About)

    @property
    def pages_in_order(self) -> list[Page]:
        """Results in the order of the document."""
        return [self.results[page] for page in sorted(self.pages) if page in self.results]

    @property
    def has_text(self) -> bool:
        """Says whether a page was read; a document without any gets no output, so that the next run tries it again."""
        return any(page.state != FAILED for page in self.pages_in_order)

    @property
    def error_rate(self) -> float:
        """Returns the part of the pages that failed or repeat themselves."""
        return sum(page.state in (FAILED, LOOPED) for page in self.pages_in_order) / len(self.pages)

    @property
    def missing(self) -> list[int]:
        return [page for page in self.pages if page not in self.results]


def markdown(draft: Draft) -> str:
    """Returns post-processed pages, blank lines between them, a comment in place of a page that failed."""
    return _joined(draft, lambda page: page.text)


def raw_text(draft: Draft) -> str:
    """Returns the same with the text as the model gave it."""
    return _joined(draft, lambda page: page.raw_text)


def json_lines(draft: Draft) -> str:
    """Returns a JSON object a page, in the fields of Dolma's documents (github.com/allenai/dolma,
    docs/data-format.md)."""
    return "".join(json.dumps(_record(draft, page), ensure_ascii=False) + "\n" for page in draft.pages_in_order)


WRITERS: dict[str, Callable[[Draft], str]] = dict(zip(FORMATS, (markdown, raw_text, json_lines), strict=True))


def loop_notice(page: Page) -> str:
    """Marks a text that was cut where it began to repeat itself."""
    times = "once" if page.attempts == 1 else f"{page.attempts} times"
    return f"the text repeats itself from here on (read {times})"


def _joined(draft: Draft, text_of: Callable[[Page], str | None]) -> str:
    parts = [_shown(page, text_of(page)) for page in draft.pages_in_order]
    if draft.missing:
        parts.append(f"<!-- interrupted: pages {', '.join(str(p + 1) for p in draft.missing)} were not read -->")
    return "\n\n".join(part for part in parts if part) + "\n"


def _shown(page: Page, text: str | None) -> str:
    if page.state == FAILED:
        return _comment(page, str(page.error))
    body = (text or "").strip()
    return f"{body}\n\n{_comment(page, loop_notice(page))}".strip() if page.state == LOOPED else body


def _comment(page: Page, text: str) -> str:
    return f"<!-- page {page.page + 1}: {re.sub('-(?=-)', '- ', text)} -->"


def _record(draft: Draft, page: Page) -> dict[str, Any]:
    about, text, number = draft.about, page.text or "", page.page + 1
    document = as_text(draft.source)
    key = hashlib.sha256(f"{document}\n{about.digest}".encode()).hexdigest()[:32]
    metadata = {  # each value of one type in all records: who reads many files takes the types from the first
        "document": document, "page": number, "num_pages": about.num_pages, "model": about.model,
        "finish_reason": page.finish_reason or "error", "tokens": page.tokens, "attempts": page.attempts,
        "raw_text": page.raw_text or "", "error_kind": page.error_kind or "", "error": page.error or "",
    }  # fmt: skip
    return {
        "id": f"{key}-{number}", "text": text, "source": SOURCE, "added": about.date, "created": about.created,
        "metadata": metadata, "attributes": {"pdf_page_numbers": [[0, len(text), number]]},
    }  # fmt: skip
