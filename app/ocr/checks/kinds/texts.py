"""Checks of words: that they are there, that they are not, that some come before others."""

from __future__ import annotations

from dataclasses import dataclass

from vlm_app.ocr.checks.check import Check, shown
from vlm_app.ocr.checks.libraries import best_similarity, starts_of_matches
from vlm_app.ocr.checks.page_text import PageText


@dataclass(frozen=True, kw_only=True)
class PresenceCheck(Check):
    """`present` or `absent`: a text that stands on the page, or does not (a running head, a page number)."""

    text: str
    case_sensitive: bool = True
    first_n: int | None = None  # looked at: so many characters of the page at its beginning …
    last_n: int | None = None  # … and at its end; None: all

    def __post_init__(self) -> None:
        super().__post_init__()
        self._normalize("text")
        for name in ("first_n", "last_n"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"has {name} {getattr(self, name)}; it must be 0 or more")

    def failure(self, page: PageText) -> str | None:
        text, within = self.text, page.normalized
        if not self.case_sensitive:
            text, within = text.lower(), within.lower()
        similarity = self._best_similarity(text, self._looked_at(within))
        is_there = similarity >= self._threshold(text)
        if is_there == (self.type == "present"):
            return None
        return f"{shown(self.text)} is {'there' if is_there else 'not there'} (similarity {similarity:.3f})"

    def _best_similarity(self, text: str, within: str) -> float:
        """Returns that of the part that comes closest; 0 for a page that is too short to hold the text."""
        return best_similarity(text, within) if len(within) >= len(text) - self.max_diffs else 0.0

    def _looked_at(self, text: str) -> str:
        first, last = self.first_n, self.last_n
        if not first and not last:
            return text
        return (text[:first] if first else "") + (text[-last:] if last else "")


@dataclass(frozen=True, kw_only=True)
class OrderCheck(Check):
    """`order`: one text begins before another somewhere on the page."""

    before: str
    after: str

    def __post_init__(self) -> None:
        super().__post_init__()
        self._normalize("before", "after")
        shortest = min(len(self.before), len(self.after))
        if self.max_diffs > shortest // 2:
            raise ValueError(f"has max_diffs {self.max_diffs}; half of a text's {shortest} characters are allowed")

    def failure(self, page: PageText) -> str | None:
        starts = [starts_of_matches(text, page.normalized, self.max_diffs) for text in (self.before, self.after)]
        for text, places in zip((self.before, self.after), starts, strict=True):
            if not places:
                return f"{shown(text)} is not there"
        if min(starts[0]) < max(starts[1]):
            return None
        return f"{shown(self.before)} is nowhere before {shown(self.after)}"
