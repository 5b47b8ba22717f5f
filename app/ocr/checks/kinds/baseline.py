"""Checks of any text: that there is some, in the letters that are expected, and no endless repetition."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vlm_app.ocr.checks.check import Check
from vlm_app.ocr.checks.page_text import PageText

LONGEST_NGRAM = 5  # characters
IMAGE = re.compile(r"!\[.*?\]\(.*?\)")  # of markdown
# Chinese and Japanese signs and emojis, which models write that have lost the page
UNEXPECTED = re.compile(
    "[\u4e00-\u9fff\u3040-\u309f\u30a0-\u30ff\U0001f600-\U0001f64f\U0001f300-\U0001f5ff\U0001f680-\U0001f6ff"
    "\U0001f1e0-\U0001f1ff]"
)


@dataclass(frozen=True, kw_only=True)
class BaselineCheck(Check):
    """`baseline`: the page has a text that may be one. With max_length, of a blank page: it has hardly any."""

    max_length: int | None = None  # letters and digits
    max_length_skips_image_alt_tags: bool = False
    max_repeats: int = 30
    check_disallowed_characters: bool = True

    def failure(self, page: PageText) -> str | None:
        if self.max_length is not None:
            count = _num_alphanumerics(IMAGE.sub("", page.text) if self.max_length_skips_image_alt_tags else page.text)
            return f"{count} letters and digits are on a blank page" if count > self.max_length else None
        if not _num_alphanumerics(page.text):
            return "no letter or digit is there"
        for size, count in enumerate(final_repeats(page.text), 1):
            if count > self.max_repeats:
                return f"the text ends with {count} times the same {size} characters"
        if self.check_disallowed_characters and (found := UNEXPECTED.search(page.text)):
            return f"{found[0]!r} (U+{ord(found[0]):04X}) is no character that is expected"
        return None


def final_repeats(text: str) -> list[int]:
    """Returns how often the last 1, 2, … LONGEST_NGRAM characters stand at the end in a row, whitespace as single
    spaces; 0 where the text is shorter."""
    text = re.sub(r"\s+", " ", text)
    return [_num_final(text, size) for size in range(1, LONGEST_NGRAM + 1)]


def _num_final(text: str, size: int) -> int:
    last, count = text[-size:], 0
    if len(text) < size:
        return 0
    while text.endswith(last, 0, len(text) - count * size):
        count += 1
    return count


def _num_alphanumerics(text: str) -> int:
    return sum(map(str.isalnum, text))
