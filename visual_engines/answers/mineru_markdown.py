"""What MinerU2.5 read of a page's parts -> markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from visual_engines.answers.doctags import CELLS, TAG, Element
from visual_engines.answers.otsl import table
from vlm.registry.page_steps import Block

LEVELS = {"title": 1, "doc_title": 1, "paragraph_title": 2}
NOTHING = "[Non-Text]"  # what it writes of a part without text
UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]")  # Chinese and Japanese


def to_markdown(parts: Sequence[tuple[Block, str]]) -> str:
    """Returns the parts in their order, each a paragraph; a text that goes on with the one before it is joined to
    it."""
    paragraphs: list[str] = []
    last_text: int | None = None
    for block, answer in parts:
        words = answer.strip()
        if not words or words == NOTHING:
            continue
        if block.goes_on and last_text is not None:
            paragraphs[last_text] = _joined(paragraphs[last_text], words)
            continue
        paragraphs.append(_paragraph(block.kind, words))
        last_text = len(paragraphs) - 1 if block.kind == "text" else last_text
    return "\n\n".join(paragraphs)


def _joined(before: str, after: str) -> str:
    return f"{before}{'' if UNSPACED.search(after) else ' '}{after}"


def _paragraph(kind: str, words: str) -> str:
    if kind in LEVELS:
        return f"{'#' * LEVELS[kind]} {' '.join(words.split())}"
    if kind == "equation":
        return f"$$\n{_formula(words)}\n$$"
    if kind == "code":
        return words if words.startswith("```") else f"```\n{words}\n```"
    return table(_otsl(words), _cell) if kind == "table" else words


def _formula(words: str) -> str:
    """Returns a formula without the marks around it."""
    for begin, end in (("\\[", "\\]"), ("$$", "$$"), ("\\(", "\\)")):
        if words.startswith(begin) and words.endswith(end) and len(words) >= len(begin) + len(end):
            return words[len(begin) : len(words) - len(end)].strip()
    return words


def _otsl(words: str) -> Element:
    """Returns a table as its cells and the ends of its rows, and the texts between them; other tags are text."""
    found, at = Element("otsl"), 0
    for tag in TAG.finditer(words):
        if tag[1] or tag[2] not in (*CELLS, "nl"):
            continue
        found.parts += [words[at : tag.start()], Element(tag[2])]
        at = tag.end()
    found.parts.append(words[at:])
    return found


def _cell(parts: list[Element | str]) -> str:
    return " ".join("".join(part for part in parts if isinstance(part, str)).split())
