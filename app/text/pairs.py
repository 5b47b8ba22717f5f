"""Texts with references, from a .tsv or .jsonl file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from app.text.sources import Item, lines
from vlm.errors import InputError, listed

SOURCES, REFERENCES = ("text", "source", "document"), ("reference", "summary", "target", "translation")


@dataclass(frozen=True)
class Pair:
    text: str
    reference: str


def read_pairs(path: Path, limit: int | None = None) -> tuple[list[Pair], list[str]]:
    """The pairs, at most `limit`, and what is wrong with the other lines. InputError when there is none."""
    if path.suffix not in (".tsv", ".jsonl"):
        raise InputError(f"{path} must be a .tsv (text, tab, reference) or .jsonl file.")
    try:
        with path.open("rb") as file:
            found = [_pair(item, path.suffix) for item in lines(str(path), file) if item.error or item.text.strip()]
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    pairs, wrong = [p for p in found if isinstance(p, Pair)], [p for p in found if isinstance(p, str)]
    if not pairs:
        raise InputError(f"{path} holds no pair of text and reference" + (f": {listed(wrong, 3)}." if wrong else "."))
    return pairs[:limit], wrong


def _pair(item: Item, suffix: str) -> Pair | str:
    if item.error:
        return f"{item.place}: {item.error}"
    if suffix == ".tsv":
        text, tab, reference = item.text.partition("\t")
        whole = tab and text.strip() and reference.strip() and "\t" not in reference
        return Pair(text, reference) if whole else f"{item.place}: it is not a text, a tab and a reference"
    try:
        fields = json.loads(item.text)
        text, reference = (next(fields[n] for n in names if n in fields) for names in (SOURCES, REFERENCES))
    except (ValueError, TypeError, RuntimeError, StopIteration):
        return f'{item.place}: it is no JSON object with "text" and "reference"'
    whole = isinstance(text, str) and isinstance(reference, str) and text.strip() and reference.strip()
    return Pair(text, reference) if whole else f"{item.place}: text or reference is no text"
