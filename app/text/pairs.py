"""Texts with references, and questions about images with answers, from a .tsv or .jsonl file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vlm.artifacts.files import open_regular
from vlm.errors import InputError, listed
from vlm_app.text.json_lines import line_object
from vlm_app.text.prompts import IMAGES
from vlm_app.text.sources import Item, beside, lines

SOURCES = ("text", "source", "document", "question", "prompt")
REFERENCES = ("reference", "summary", "target", "translation", "answer")
WHAT = 'JSON object with "text" and "reference", or "image", "question" and "answer"'


@dataclass(frozen=True)
class Pair:
    text: str
    reference: str
    place: str  # for messages
    images: tuple[str, ...] = ()  # paths of what the text asks about
    is_summary: bool = False  # does the file call the reference so?


def read_pairs(path: Path, limit: int | None = None) -> tuple[list[Pair], list[str]]:
    """Returns the pairs, at most `limit`, and what is wrong with other lines up to there. InputError when there is
    none."""
    suffix = path.suffix.lower()
    if suffix not in (".tsv", ".jsonl"):
        raise InputError(f"{path} must be a .tsv (text, tab, reference) or .jsonl file.")
    try:
        with open_regular(path) as file:
            pairs, errors = _sorted(lines(str(path), file), suffix, limit)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; give a .tsv or .jsonl file of pairs.") from None
    if not pairs:
        raise InputError(f"{path} holds no pair of text and reference" + (f": {listed(errors, 3)}." if errors else "."))
    return pairs, errors


def _sorted(items: Iterator[Item], suffix: str, limit: int | None) -> tuple[list[Pair], list[str]]:
    pairs: list[Pair] = []
    errors: list[str] = []
    for item in items:
        if len(pairs) == limit:
            break
        if item.error or item.text.strip():
            pair = _pair(item, suffix)
            if isinstance(pair, Pair):
                pairs.append(pair)
            else:
                errors.append(pair)
    return pairs, errors


def _pair(item: Item, suffix: str) -> Pair | str:
    if item.error:
        return f"{item.place}: {item.error}"
    if suffix == ".tsv":
        text, tab, reference = item.text.partition("\t")
        whole = tab and text.strip() and reference.strip() and "\t" not in reference
        return Pair(text, reference, item.place) if whole else f"{item.place}: it is not a text, a tab and a reference"
    try:
        fields = line_object(item.text, WHAT)
    except InputError as error:
        return f"{item.place}: {error}"
    if not all(any(name in fields for name in names) for names in (SOURCES, REFERENCES)):
        return f"{item.place}: it is no {WHAT}"
    text, reference = (next(fields[n] for n in names if n in fields) for names in (SOURCES, REFERENCES))
    images = next((fields[name] for name in IMAGES if name in fields), ())
    images = [images] if isinstance(images, str) else images
    if not (isinstance(text, str) and isinstance(reference, str) and text.strip() and reference.strip()):
        return f"{item.place}: text or reference is no text"
    if not (isinstance(images, list | tuple) and all(isinstance(path, str) for path in images)):
        return f"{item.place}: its images are no list of paths"
    paths = tuple(beside(item.source, path) for path in images)
    return Pair(text, reference, item.place, paths, is_summary="summary" in fields)
