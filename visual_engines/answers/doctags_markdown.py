"""DocTags -> markdown: headings, lists, tables, formulas, code, captions. Headers and footers of pages are left out."""

from __future__ import annotations

import re
from collections.abc import Iterator

from visual_engines.answers.doctags import LANGUAGE, LISTS, TABLES, Element, is_doctags, parse
from visual_engines.answers.otsl import table

LEFT_OUT = ("page_header", "page_footer", "page_break")
BULLET = re.compile(r"[•·‣▪◦●○–—*-]\s+")
NUMBER = re.compile(r"\d+[.)]\s")
KIND = re.compile(r"^\s*<[a-z_]+>")  # of a picture: <line_chart>
BOXES = {"checkbox_selected": "- [x]", "checkbox_unselected": "- [ ]"}


def to_markdown(text: str) -> str:
    """Returns the markdown of a page in DocTags; any other text as it is."""
    return "\n\n".join(_blocks(parse(text))) if is_doctags(text) else text


def _blocks(element: Element) -> list[str]:
    """Returns the paragraphs of what an element holds."""
    found: list[str] = []
    words: list[Element | str] = []  # of one paragraph
    for part in element.parts:
        if isinstance(part, str):
            words.append(part)
            continue
        found += _paragraph(words)
        words = []
        found += _block(part)
    return [block for block in (*found, *_paragraph(words)) if block.strip()]


def _paragraph(words: list[Element | str]) -> list[str]:
    return [_words(words)]


def _block(element: Element) -> list[str]:
    """Returns the paragraphs of an element."""
    name = element.name
    if name in LEFT_OUT:
        return []
    if name in TABLES:
        return [*_captions(element), table(_content(element), _words)]
    if name in LISTS:
        return ["\n".join(_items(element))]
    if name == "list_item":  # of no list
        return ["\n".join(_item(element, "-"))]
    if name == "picture":
        return [*_captions(element), *_blocks(_content(element))]
    if name in ("code", "smiles"):
        return [_code(element)]
    if name == "formula":
        return [f"$${words}$$"] if (words := _words(element.parts)) else []
    if name == "inline":
        return [_words(element.parts)]
    return _blocks(element) if name in ("doctag", "group", "form", "key_value_region") else _text(element)


def _text(element: Element) -> list[str]:
    words, name = _words(element.parts), element.name
    if not words:
        return []
    if name in BOXES:
        return [f"{BOXES[name]} {words}"]
    level = 1 if name == "title" else int(name[-1]) + 1 if name.startswith("section_header") else 0
    return [f"{'#' * min(level, 6)} {words}" if level else words]


def _words(parts: list[Element | str]) -> str:
    """Returns the words of a line, formulas and code among them marked as such."""
    found = [part if isinstance(part, str) else _inline(part) for part in parts]
    return " ".join("".join(found).split())


def _inline(element: Element) -> str:
    if element.name in LEFT_OUT:
        return ""
    if element.name in ("code", "smiles"):
        return f"`{_source(element)[1].strip()}`"
    words = _words(element.parts)
    return f"${words}$" if element.name == "formula" and words else f" {words} "


# --- elements that hold others ---
def _captions(element: Element) -> list[str]:
    return [words for part in element.elements if part.name == "caption" and (words := _words(part.parts))]


def _content(element: Element) -> Element:
    """Returns a picture or table without its captions, and what it is a picture of."""
    parts = [KIND.sub("", part, count=1) if isinstance(part, str) else part for part in element.parts]
    return Element(element.name, [part for part in parts if isinstance(part, str) or part.name != "caption"])


def _items(element: Element) -> Iterator[str]:
    """Yields the lines of a list."""
    number = 0
    for part in element.parts:
        if isinstance(part, str):
            yield from filter(None, [part.strip()])
        elif part.name in LISTS:  # of no item
            yield from (f"  {line}" for line in _items(part))
        else:
            number += 1
            yield from _item(part, f"{number}." if element.name == "ordered_list" else "-")


def _item(element: Element, mark: str) -> Iterator[str]:
    """Yields the lines of a list's item: its own words after the mark, the lists within it further in."""
    lists = [part for part in element.elements if part.name in LISTS]
    words = _words([part for part in element.parts if isinstance(part, str) or part.name not in LISTS])
    words = BULLET.sub("", words, count=1) if BULLET.match(words) else words
    yield words if mark != "-" and NUMBER.match(words) else f"{mark} {words}".rstrip()
    for each in lists:
        yield from (f"{' ' * (len(mark) + 1)}{line}" for line in _items(each))


def _source(element: Element) -> tuple[str, str]:
    """Returns the language and the text of source code."""
    text = "".join(part for part in element.parts if isinstance(part, str))
    language = LANGUAGE.match(text)
    name = language[1].lower() if language else ""
    return ("" if name == "unknown" else name), text[language.end() :] if language else text


def _code(element: Element) -> str:
    language, text = _source(element)
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.strip(chr(10))}\n{fence}"
