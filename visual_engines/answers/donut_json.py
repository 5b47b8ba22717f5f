"""Donut's texts as JSON: `<s_total>5</s_total>` is `{"total": "5"}`, as transformers' DonutProcessor reads them."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

SEPARATOR = "<sep/>"
OPENING = re.compile(r"<s_([^>]*)>", re.IGNORECASE)
CATEGORY = re.compile(r"<([^<>]+)/>")
MAX_DEPTH = 50  # of fields within fields; what is deeper stays text


class Item(NamedTuple):
    """What was read of a text up to a separator between two items, or to its end."""

    fields: dict[str, Any]
    left: str  # in which no field begins
    following: str | None = None  # what comes after a separator


def to_json(text: str) -> str:
    """Returns the fields of a text as JSON; the text alone, as "text_sequence", where it has none."""
    return json.dumps(read_fields(text.strip()), ensure_ascii=False)


def read_fields(text: str) -> dict[str, Any] | list[dict[str, Any]]:
    """Returns the fields of a text, a list of them where it is several items."""
    item = _item(text, 0)
    if item.following is not None:
        return [item.fields, *_items(item.following, 0)]
    return item.fields or {"text_sequence": item.left}


def _items(text: str, depth: int) -> list[dict[str, Any]]:
    """Returns the items between separators; the last one only if it has fields."""
    found, following = [], text
    while following is not None:
        fields, _, following = _item(following, depth)
        found += [fields] if fields or following is not None else []
    return found


def _item(text: str, depth: int) -> Item:
    fields: dict[str, Any] = {}
    while opening := OPENING.search(text):
        closing = re.search(rf"</s_{re.escape(opening[1])}>", text, re.IGNORECASE)
        if closing is None:
            text = text.replace(opening[0], "")
            continue
        pattern = f"{re.escape(opening[0])}(.*?){re.escape(closing[0])}"
        content = re.search(pattern, text, re.IGNORECASE | re.DOTALL)
        if content is not None and (value := _value(content[1].strip(), depth)) != []:
            fields[opening[1]] = value
        text = text[closing.end() :].strip()
        if text.startswith(SEPARATOR):
            return Item(fields, text, text.removeprefix(SEPARATOR))
    return Item(fields, text)


def _value(content: str, depth: int) -> Any:
    """Returns a field's value: fields within it, or its text; a list of several."""
    has_fields = "<s_" in content and "</s_" in content and depth < MAX_DEPTH
    values = _items(content, depth + 1) if has_fields else [_leaf(part.strip()) for part in content.split(SEPARATOR)]
    return values[0] if len(values) == 1 else values


def _leaf(text: str) -> str:
    """Returns a text; of a category's token, as `<yes/>`, its name."""
    category = CATEGORY.fullmatch(text)
    return category[1] if category else text
