"""Inputs of a user's to calibrate with: pages, texts, questions about images; with what the model should write, where
that is known."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vlm.errors import ImageError, InputError, VlmError, listed
from vlm_app.ocr.documents.sources import find_documents
from vlm_app.text.json_lines import line_object
from vlm_app.text.prompts import prompt_of
from vlm_app.text.sources import Item, from_file

RENAMED = {"question": "prompt", "source": "text", "document": "text", "image": "images"}
REFERENCES = ("reference", "answer", "summary", "target", "translation")
TRUTHS = (".mmd", ".md", ".txt")  # suffixes of what a page says, beside its image
HELD_OUT = 5  # one of so many samples is for the report where there are fewer than both need
ENOUGH = 10  # samples from which on some are held out
TEXTS = (".jsonl", ".tsv", ".txt")


@dataclass(frozen=True)
class Sample:
    """One input, as the pipeline takes it; of a text alone, `text` is what a task makes an input of."""

    place: str  # for messages
    text: str = ""
    images: tuple[Any, ...] = ()
    messages: Any = None  # a Conversation
    reference: str | None = None


@dataclass(frozen=True)
class Samples:
    """The samples that were drawn, and what is wrong with others."""

    drawn: list[Sample]
    errors: list[str]

    @classmethod
    def read(cls, path: Path, count: int, seed: int) -> Samples:
        """Draws `count` samples of a file of texts or questions, of a document, or of a folder of documents. Raises
        InputError where there is none."""
        if not path.exists():
            raise InputError(f"--calibrate {path} does not exist; give a folder of pages, or a file of texts.")
        samples = cls([], [])
        for each in _drawn(path, random.Random(seed)):
            if len(samples.drawn) == count:
                break
            samples._add(each)
        if not samples.drawn:
            reasons = f": {listed(samples.errors, 3)}" if samples.errors else ""
            raise InputError(f"--calibrate {path} holds no input{reasons}.")
        return samples

    def split(self, count: int, report: int) -> tuple[list[Sample], list[Sample]]:
        """Returns `count` samples to calibrate with and others, at most `report`, to compare on: a part of the first
        where there are no more, and of very few all for both."""
        spare = max(len(self.drawn) - count, len(self.drawn) // HELD_OUT if len(self.drawn) >= ENOUGH else 0)
        rest = self.drawn[len(self.drawn) - min(spare, report) :] if spare else self.drawn[:report]
        return self.drawn[: min(count, len(self.drawn) - spare)], rest

    def _add(self, sample: Sample | str) -> None:
        if isinstance(sample, Sample):
            self.drawn.append(sample)
        else:
            self.errors.append(sample)


def _drawn(path: Path, rng: random.Random) -> Iterator[Sample | str]:
    """Yields the samples of a file's lines, or of documents, in random order; page after page of each document."""
    if path.is_file() and path.suffix.lower() in TEXTS:
        items = list(from_file(path, of_json=_line, of_columns=_with_reference))
        return _texts(rng.sample(items, len(items)))
    sources = find_documents([path]).sources
    return _pages(rng.sample(sources, len(sources)))


def _texts(items: Iterable[Item]) -> Iterator[Sample | str]:
    for item in items:
        if error := item.error or _missing(item):
            yield f"{item.place}: {error}"
        elif not item.is_empty:
            images, reference = tuple(item.fields.get("images", ())), item.fields.get("reference") or None
            yield Sample(item.place, item.text, images, messages=item.fields.get("messages"), reference=reference)


def _missing(item: Item) -> str | None:
    """Returns what is wrong with the first of its images' files that cannot be opened."""
    from vlm.processing.media.images import check_opens

    try:
        for image in item.fields.get("images", ()):
            check_opens(image)
    except ImageError as error:
        return str(error).rstrip(".")
    return None


def _with_reference(item: Item) -> Item:
    """Reads a line of a .tsv: a text, and what it is answered by."""
    text, _, reference = item.text.partition("\t")
    return replace(item, text=text, fields={"reference": reference})


def _line(item: Item) -> Item:
    """Reads a line of JSON: a prompt as `prompt_of` has it, in any of the usual words, and what it is answered by."""
    if item.error or not item.text.strip():
        return item
    try:
        fields = line_object(item.text)
    except InputError as error:
        return Item(item.source, item.line, error=str(error))
    reference = next((fields[name] for name in REFERENCES if isinstance(fields.get(name), str)), None)
    named = {RENAMED.get(name, name): value for name, value in fields.items()}
    prompt = prompt_of(Item(item.source, item.line, json.dumps(named, ensure_ascii=False)))
    more = {} if reference is None else {"reference": reference}
    return Item(prompt.source, prompt.line, prompt.text, prompt.error, fields={**prompt.fields, **more})


def _pages(sources: Iterable[Any]) -> Iterator[Sample | str]:
    """Yields pages, and for a document that cannot be opened why."""
    from vlm.processing.media.documents.document import document_pages

    for source in sources:
        try:
            pages = document_pages(str(source.path))
        except VlmError as error:
            yield str(error).rstrip(".")
            continue
        truth = _truth(source.path) if len(pages) == 1 else None
        for number, page in enumerate(pages, 1):
            place = str(source.path) if len(pages) == 1 else f"{source.path} page {number}"
            yield Sample(place, images=(page,), reference=truth)


def _truth(path: Path) -> str | None:
    """Returns what a page says, of the file of text beside it."""
    files = (path.with_suffix(suffix) for suffix in TRUTHS)
    return next((file.read_text(encoding="utf-8", errors="replace") for file in files if file.is_file()), None)
