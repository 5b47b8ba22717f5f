"""JSON that is written in parts: between them other threads have their turn, the event loop's, too."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def json_parts(fields: Mapping[str, Any], /, **written: Iterable[str]) -> Iterator[str]:
    """Yields the parts of an object that has `fields`, and others whose JSON is `written` in parts."""
    yield json.dumps(fields, ensure_ascii=False)[:-1]
    for name, parts in written.items():
        yield f", {json.dumps(name)}: "
        yield from parts
    yield "}"


def list_parts(items: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yields the parts of a list, whose items have parts each."""
    yield "["
    for number, parts in enumerate(items):
        yield ", " * (number > 0)
        yield from parts
    yield "]"
