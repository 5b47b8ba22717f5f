"""Ranges of pages, as people write them."""

from __future__ import annotations

import re

from vlm.errors import DocumentError, counted, cut, shown


def parse_pages(pages: str, num_pages: int, name: str = "the document") -> list[int]:
    """Reads `1-4,7` -> [0, 1, 2, 3, 6], in the order given, none twice: those that a document of so many pages has.
    DocumentError for what is no range, and where it has none of them."""
    numbers: dict[int, None] = {}
    for part in pages.split(","):
        match = re.fullmatch(r"\s*(\d{1,18})\s*(?:(-)\s*(\d{0,18})\s*)?", part)
        if not match:
            raise DocumentError(
                f"the page range {shown(pages)} is not understood; write 1-4,7 or 5- for all from the fifth."
            )
        first = int(match[1])
        last = first if not match[2] else int(match[3]) if match[3] else max(first, num_pages)
        if not 1 <= first <= last:
            raise _outside(part.strip(), num_pages, name)
        numbers.update(dict.fromkeys(range(first - 1, min(last, num_pages))))
    if not numbers:
        raise _outside(pages, num_pages, name)
    return list(numbers)


def _outside(pages: str, num_pages: int, name: str) -> DocumentError:
    known = "1 alone" if num_pages == 1 else f"some of 1 to {num_pages:,}"
    return DocumentError(
        f"pages {cut(pages)} were asked for, {name} has {counted(num_pages, 'page')}; give {known}.",
        "page range",
    )
