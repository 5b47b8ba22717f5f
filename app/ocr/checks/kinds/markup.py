"""Checks of markup: formats and footnotes, and formulas, which are not judged."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from vlm_app.ocr.checks.check import Check, shown
from vlm_app.ocr.checks.libraries import best_similarity
from vlm_app.ocr.checks.normalizing import normalized
from vlm_app.ocr.checks.page_text import PageText

# a span's text by its format, in markdown and in HTML
FORMATS = {
    "heading": (r"(?m)^#{1,6}\s+(.+?)$", r"(?is)<h[1-6][^>]*>(.*?)</h[1-6]>"),
    "bold": (r"(?s)\*\*(.*?)\*\*", r"(?s)__(.*?)__", r"(?is)<b[^>]*>(.*?)</b>", r"(?is)<strong[^>]*>(.*?)</strong>"),
    "italic": (
        r"(?s)(?<!\*)\*(?!\*)(.*?)(?<!\*)\*(?!\*)", r"(?s)(?<!_)_(?!_)(.*?)(?<!_)_(?!_)",
        r"(?is)<i[^>]*>(.*?)</i>", r"(?is)<em[^>]*>(.*?)</em>",
    ),
}  # fmt: skip
SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
AROUND = 200  # characters beside a footnote's marker that are looked at


@dataclass(frozen=True, kw_only=True)
class FormatCheck(Check):
    """`format`: a text stands in a heading, in bold or in italics."""

    text: str
    format: str
    case_sensitive: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._normalize("text")
        if self.format not in FORMATS:
            raise ValueError(f"has format {self.format!r}; allowed are {', '.join(FORMATS)}")

    def failure(self, page: PageText) -> str | None:
        spans = [normalized(span) for pattern in FORMATS[self.format] for span in re.findall(pattern, page.text)]
        text = self.text if self.case_sensitive else self.text.lower()
        for span in spans if self.case_sensitive else map(str.lower, spans):
            if best_similarity(text, span) >= self._threshold(text):
                return None
        return f"{shown(self.text)} is in none of {len(spans)} texts in the format {self.format}"


@dataclass(frozen=True, kw_only=True)
class FootnoteCheck(Check):
    """`footnote`: a marker is there, raised or as [^1], and texts stand beside one of its places."""

    marker: str
    appears_before_marker: str | None = None
    appears_after_marker: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.marker or " " in self.marker:
            raise ValueError(f"has marker {self.marker!r}; a marker is a word")
        self._normalize(*(name for name in ("appears_before_marker", "appears_after_marker") if getattr(self, name)))

    def failure(self, page: PageText) -> str | None:
        places = list(self._places(page.text))
        if not places:
            return f"the marker {self.marker!r} is not there"
        before = (_letters(page.text[max(0, start - AROUND) : start]) for start, _ in places)
        after = (_letters(page.text[end : end + AROUND]) for _, end in places)
        if not self._stands(self.appears_before_marker, before, at_end=True):
            return f"{shown(self.appears_before_marker or '')} stands before no marker {self.marker!r}"
        if not self._stands(self.appears_after_marker, after, at_end=False):
            return f"{shown(self.appears_after_marker or '')} stands after no marker {self.marker!r}"
        return None

    def _places(self, text: str) -> Iterator[tuple[int, int]]:
        marker = re.escape(self.marker)
        patterns = [rf"\[\^{marker}\](?!:)", rf"(?i)<sup[^>]*>{marker}</sup>"]
        if set(self.marker) <= set("0123456789"):
            patterns.append(re.escape(self.marker.translate(SUPERSCRIPTS)))
        return (match.span() for pattern in patterns for match in re.finditer(pattern, text))

    def _stands(self, text: str | None, beside: Iterator[str], *, at_end: bool) -> bool:
        """Says whether a text is in one of those beside the marker, in the twice its length that is next to it."""
        if not text:
            return True
        letters, threshold = _letters(text), self._threshold(text)
        reach = 2 * len(letters) or AROUND
        nearest = (part[-reach:] if at_end else part[:reach] for part in beside if part)
        return any(best_similarity(letters, part) >= threshold for part in nearest)


@dataclass(frozen=True, kw_only=True)
class MathCheck(Check):
    """`math`: a formula that looks the same is there."""

    unjudged: ClassVar[str] = "formulas are compared as they are drawn, which needs a renderer that vlm does not have"

    math: str
    ignore_dollar_delimited: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.math.strip():
            raise ValueError("has an empty math")


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, normalized(text))).lower()
