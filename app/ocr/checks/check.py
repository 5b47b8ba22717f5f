"""What one check is, in the fields of olmOCR-bench's JSONL files; the kinds of checks are in `kinds`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vlm_app.ocr.checks.normalizing import normalized
from vlm_app.ocr.checks.page_text import PageText

SHOWN = 40  # characters of a text in a message


@dataclass(frozen=True, kw_only=True)
class Check:
    """A fact about a page. ValueError, with a part of a sentence, for values that make no check."""

    unjudged: ClassVar[str] = ""  # why no text passes or fails, for kinds that cannot be judged here

    pdf: str  # the document, below the documents' folder: a PDF or an image
    page: int  # from 1
    id: str
    type: str
    max_diffs: int = 0  # edits that are allowed
    checked: str | None = None  # by people: verified or rejected
    url: str | None = None  # where the document is from

    def __post_init__(self) -> None:
        for name in ("pdf", "id"):
            if not getattr(self, name):
                raise ValueError(f"has an empty {name}")
        if self.page < 1:
            raise ValueError(f"has page {self.page}; the first page is 1")
        if self.max_diffs < 0:
            raise ValueError(f"has max_diffs {self.max_diffs}; it must be 0 or more")

    def failure(self, page: PageText) -> str | None:
        """Returns why a page's text does not pass, a part of a sentence; None where it does."""
        raise NotImplementedError

    def _normalize(self, *names: str) -> None:
        """Brings texts into the form in which they are compared. ValueError for one that is empty then."""
        for name in names:
            object.__setattr__(self, name, normalized(getattr(self, name)))
            if not getattr(self, name).strip():
                raise ValueError(f"has an empty {name}")

    def _threshold(self, text: str) -> float:
        """Returns how alike a text must be, from 0 to 1."""
        return 1.0 - (self.max_diffs / (len(text) or 1))


def shown(text: str) -> str:
    """Returns the beginning of a text, for messages."""
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}…")
