"""The form in which checks compare texts: olmOCR-bench's."""

from __future__ import annotations

import re
import unicodedata

# line breaks, then bold and italics within a line; the order matters: what is left of one rule is another's
RULES = (
    (r"<br/?>", " "), (r"\*\*(.*?)\*\*", r"\1"), (r"__(.*?)__", r"\1"), (r"</?b>", ""), (r"</?i>", ""),
    (r"(\*\*|__)(.*?)\1", r"\2"), (r"(\*|_)(.*?)\1", r"\2"), (r"\s+", " "),
)  # fmt: skip
# look-alikes that count as one sign: quotes, dashes, a wide underscore, and the micro sign as the Greek letter
SAME = str.maketrans("‘’‚“”„–—‑‒−＿\u00b5", "'''\"\"\"-----_\u03bc")


def normalized(text: str) -> str:
    """Returns a text without emphasis, with single spaces, composed characters (NFC) and plain signs."""
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    return unicodedata.normalize("NFC", text).translate(SAME)
