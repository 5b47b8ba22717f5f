"""Texts out of arguments, files and stdin, line by line or whole; what cannot be read costs one line."""

from __future__ import annotations

import codecs
import errno
import itertools
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from vlm.errors import InputError
from vlm_app.text.json_lines import line_object

STDIN = "-"
WORDS = ("text", "source", "document")  # of an object of JSON
WHAT = 'JSON object with "text"'
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # how a file begins
MAX_BYTES = 2**24  # of a text; no model takes so many, and several are held at once
MAX_SKIPPED = 2**30  # of a line that is too long, to find the next one


@dataclass(frozen=True)
class Item:
    """One text, or why there is none. An empty line or file is passed through; an argument is what it is."""

    source: str  # the file's name; "" for an argument
    line: int | None  # 1 is the first; None: the text is the whole file
    text: str = ""
    error: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)  # what else its input has, by the pipeline's names

    @property
    def is_empty(self) -> bool:
        return bool(self.source) and not (self.text.strip() or {"messages", "images", "input_ids"} & self.fields.keys())

    @property
    def place(self) -> str:
        if self.line is None:
            return self.source
        return f"{self.source} line {self.line}" if self.source else f"text {self.line}"


def from_arguments(texts: Iterable[str], whole: bool = False) -> Iterator[Item]:
    """Reads the arguments; `-` is stdin, a text a line or all of it as one."""
    for number, text in enumerate(texts, 1):
        if text != STDIN:
            yield checked(Item("", number, text))
        elif whole:
            yield _whole("stdin", sys.stdin.buffer)
        else:
            yield from lines("stdin", sys.stdin.buffer)


def one_text(argument: str) -> str:
    """Returns an argument, or for `-` all of stdin. InputError unless it is UTF-8, and for an empty stdin."""
    [item] = from_arguments([argument], whole=True)
    if item.error:
        raise InputError(f"{item.place}: {item.error}.")
    if argument == STDIN and not item.text:
        raise InputError("stdin is empty; - reads a text from it.")
    return item.text


def text_of(item: Item) -> Item:
    """Returns the `text` of a line of JSON."""
    if item.error or not item.text.strip():
        return item
    try:
        fields = line_object(item.text, WHAT)
    except InputError as error:
        return Item(item.source, item.line, error=str(error))
    if not (names := [name for name in WORDS if name in fields]):
        return Item(item.source, item.line, error=f"it is no {WHAT}")
    text = fields[names[0]]
    if not isinstance(text, str):
        return Item(item.source, item.line, error="its text is no string")
    return checked(Item(item.source, item.line, text, fields=beside_words(fields)))


def beside_words(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a line of JSON says about its input beside the words: an adapter, a task."""
    return {name: fields[name] for name in ("lora", "task") if name in fields}


def first_column(item: Item) -> Item:
    """Returns the text of a line of a .tsv, ahead of its reference."""
    return replace(item, text=item.text.partition("\t")[0])


def from_file(
    path: Path,
    whole: bool = False,
    of_json: Callable[[Item], Item] = text_of,
    of_columns: Callable[[Item], Item] = first_column,
) -> Iterator[Item]:
    """Reads a text a line, or the file as one; a .jsonl file holds an object a line, which `of_json` reads, a .tsv
    columns, which `of_columns` does."""
    try:
        check_ends(path)
        file = path.open("rb")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    with file:
        if (suffix := path.suffix.lower()) == ".jsonl":
            yield from map(of_json, lines(str(path), file))
        elif suffix == ".tsv":
            yield from map(of_columns, lines(str(path), file))
        elif whole:
            yield _whole(str(path), file)
        else:
            yield from lines(str(path), file)


def beside(file: str, path: str) -> str:
    """Returns a path that a file names; where there is none it may stand beside the file."""
    other = os.path.join(os.path.dirname(file), path)
    return other if not os.path.exists(path) and os.path.exists(other) else path  # of names that can be none, too


def check_ends(path: Path) -> None:
    """Raises OSError for a device that is no terminal: it may be read for ever. Pipes are what shells make."""
    mode = path.stat().st_mode
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        with path.open("rb") as file:
            if not file.isatty():
                raise OSError(errno.EINVAL, "it is a device, not a file", str(path))


def lines(name: str, file: BinaryIO) -> Iterator[Item]:
    """Yields each line without its end; one that is not UTF-8 or too long has an error. After one that does not
    end, and of a file in UTF-16, nothing is read."""
    for number in itertools.count(1):
        if not (data := file.readline(MAX_BYTES + 1)):
            return
        ends = len(data) <= MAX_BYTES or data.endswith(b"\n") or _skipped(file)
        yield (item := _decoded(name, number, data.rstrip(b"\r\n")))
        if not ends or item.line is None:
            return


def _skipped(file: BinaryIO) -> bool:
    """Reads to the end of a line. False where there is none."""
    rest = (file.readline(MAX_BYTES) for _ in range(MAX_SKIPPED // MAX_BYTES))
    return any(not part or part.endswith(b"\n") for part in rest)


def _whole(name: str, file: BinaryIO) -> Item:
    return _decoded(name, None, file.read(MAX_BYTES + 1))


def _decoded(name: str, number: int | None, data: bytes) -> Item:
    if number in (1, None) and data.startswith(UTF_16):  # all of the file is
        return Item(name, None, error="it is UTF-16; save it as UTF-8")
    if len(data) > MAX_BYTES:
        return Item(name, number, error=f"it has more than {MAX_BYTES:,} bytes")
    if (at := data.find(b"\0")) >= 0:  # of UTF-16, say
        return Item(name, number, error=f"it has a NUL character (byte {at + 1} of it); save it as UTF-8, without them")
    if number in (1, None):
        data = data.removeprefix(codecs.BOM_UTF8)
    try:
        return Item(name, number, data.decode("utf-8"))
    except UnicodeDecodeError as error:
        return Item(name, number, error=f"it is not UTF-8 (byte {error.start + 1} of it)")


def checked(item: Item) -> Item:
    """Arguments that are not UTF-8, and JSON's escapes, may hold halves of characters, which no tokenizer takes."""
    try:
        item.text.encode("utf-8")
    except UnicodeEncodeError as error:
        return Item(item.source, item.line, error=f"character {error.start + 1} of it is not Unicode text")
    return item
