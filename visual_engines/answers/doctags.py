"""DocTags, as SmolDocling and Granite-Docling write pages (Nassar et al., arXiv:2503.11576) -> a tree of elements.

An output may end anywhere, and have tags that no other closes: what it says before that is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

# elements that hold text, and perhaps formulas and the like within it
TEXTS = ("text", "paragraph", "title", "caption", "footnote", "references", "page_header", "page_footer",
         "checkbox_selected", "checkbox_unselected", *(f"section_header_level_{n}" for n in range(1, 7)))  # fmt: skip
INLINE = ("formula", "code", "smiles")  # may stand within a text
TABLES = ("otsl", "chart", "document_index")
LISTS = ("ordered_list", "unordered_list")
HOLDERS = ("doctag", "group", "inline", "picture", "form", "key_value_region", "list_item", *LISTS, *TABLES)
CELLS = ("fcel", "ecel", "lcel", "ucel", "xcel", "ched", "rhed", "srow")
LEAVES = (*CELLS, "nl", "page_break")  # have no end
NAMES = frozenset((*TEXTS, *INLINE, *HOLDERS, *LEAVES))
PARTS = frozenset(f"<{end}{name}_" for end in ("", "/") for name in ("key", "value", "link", "rec"))
MOST_NESTED = 24  # elements within each other; what is deeper counts as text of the last one

TAG = re.compile(r"<(/?)([a-z][a-z_0-9]*)>")
UNREAD = re.compile(r"<loc_\d+>|</?(?:key|value|link|rec)_\d+>")
LANGUAGE = re.compile(r"\s*<_([^<>\s]+)_>")
# a page, or an element alone; other texts of these models are words
BEGIN = re.compile(r"\s*<(?:(?:doctag|otsl|chart|formula)>|(?:[a-z_0-9]+)><loc_\d+>)")


@dataclass
class Element:
    """A tag, and what stands between it and its end."""

    name: str
    parts: list[Element | str] = field(default_factory=list)

    @property
    def elements(self) -> list[Element]:
        return [part for part in self.parts if isinstance(part, Element)]


def is_tag(token: str) -> bool:
    """Says whether a token of a tokenizer is one that pages are written with."""
    tag = TAG.fullmatch(token)
    is_name = tag is not None and tag[2] in NAMES
    return is_name or token in PARTS or bool(UNREAD.fullmatch(token) or LANGUAGE.fullmatch(token))


def is_doctags(text: str) -> bool:
    return BEGIN.match(text) is not None


def parse(text: str) -> Element:
    """Returns the page as one element, places left out."""
    page, text = Element("doctag"), UNREAD.sub("", text)
    open_elements, at = [page], 0
    for tag in _tags(text):
        _add_text(open_elements[-1], text[at : tag.start()])
        at = tag.end()
        if tag[1]:
            _close(open_elements, tag[2])
        else:
            _open(open_elements, tag[2])
            if tag[2] in ("code", "smiles"):  # source code may hold tags of its own
                at = _add_source(open_elements, text, at)
    _add_text(open_elements[-1], text[at:])
    return page


def _tags(text: str) -> Iterator[re.Match[str]]:
    """Yields the tags that pages have, but none within source code."""
    at = 0
    while tag := TAG.search(text, at):
        at = tag.end()
        if tag[2] not in NAMES:
            continue
        yield tag
        if tag[2] in ("code", "smiles") and not tag[1]:
            end = text.find(f"</{tag[2]}>", at)
            at = len(text) if end < 0 else end


def _add_source(open_elements: list[Element], text: str, at: int) -> int:
    """Adds all up to the end of source code; returns where that is."""
    name = open_elements[-1].name
    end = text.find(f"</{name}>", at)
    end = len(text) if end < 0 else end
    open_elements[-1].parts.append(text[at:end])
    return end


def _add_text(element: Element, text: str) -> None:
    if text:
        element.parts.append(text)


def _open(open_elements: list[Element], name: str) -> None:
    """Adds an element to those that are open; a text or an item that has no end yet ends before it."""
    if name not in INLINE:
        while open_elements[-1].name in (*TEXTS, *INLINE):
            open_elements.pop()
    if name == "list_item" and open_elements[-1].name == "list_item":
        open_elements.pop()
    element = Element(name)
    open_elements[-1].parts.append(element)
    if name not in LEAVES and len(open_elements) < MOST_NESTED:
        open_elements.append(element)


def _close(open_elements: list[Element], name: str) -> None:
    """Ends the innermost element of that name, and those within it."""
    names = [element.name for element in open_elements]
    if name in names[1:]:
        del open_elements[len(names) - 1 - names[::-1].index(name) :]
