"""Reads checks from JSONL files: those of olmOCR-bench as they are published, and one's own."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from vlm.artifacts.files import json_fault, open_regular
from vlm.errors import InputError, cut, listed
from vlm_app.ocr.checks.check import Check
from vlm_app.ocr.checks.kinds.baseline import BaselineCheck
from vlm_app.ocr.checks.kinds.markup import FootnoteCheck, FormatCheck, MathCheck
from vlm_app.ocr.checks.kinds.tables import TableCheck
from vlm_app.ocr.checks.kinds.texts import OrderCheck, PresenceCheck

LONGEST_LINE = 2**20  # bytes
KINDS: dict[str, type[Check]] = {
    "present": PresenceCheck, "absent": PresenceCheck, "order": OrderCheck, "table": TableCheck, "math": MathCheck,
    "format": FormatCheck, "footnote": FootnoteCheck, "baseline": BaselineCheck,
}  # fmt: skip
WORDS = {str: "a text", int: "a whole number", bool: "true or false"}


@dataclass(frozen=True)
class Entry:
    """A check, and where it is written."""

    check: Check
    file: Path
    line: int | None  # None: it stands in no file (the baseline of a page)

    @property
    def place(self) -> str:
        return f"{self.file} line {self.line}" if self.line else f"the baseline of {self.check.pdf}"


def read_checks(path: Path) -> list[Entry]:
    """Returns the checks of a file. Raises InputError for the first line that is none, and where there is none."""
    entries: list[Entry] = []
    lines: dict[str, int] = {}  # by id
    try:
        with open_regular(path) as file:
            for number, line in _lines(path, file):
                check = _check(line, place=f"{path} line {number}")
                if (first := lines.setdefault(check.id, number)) != number:
                    raise InputError(f"{path} line {number} has the id {check.id!r} of line {first}; ids are unique.")
                entries.append(Entry(check, path, number))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; --checks takes a JSONL file.") from None
    if not entries:
        raise InputError(f"{path} holds no check; write a JSON object a line.")
    return entries


def with_baselines(entries: list[Entry]) -> list[Entry]:
    """Returns the checks, and a baseline for each page of the documents that have none, as olmOCR-bench does."""
    own = {(entry.file.parent, entry.check.pdf) for entry in entries if entry.check.type == "baseline"}
    pages = {(entry.file.parent, entry.check.pdf, entry.check.page) for entry in entries}
    added = [
        Entry(
            BaselineCheck(pdf=pdf, page=page, id=f"{pdf} {page} baseline", type="baseline"), folder / "baseline", None
        )
        for folder, pdf, page in sorted(pages)
        if (folder, pdf) not in own
    ]
    return entries + added


def _lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise InputError(f"{path} line {number} is longer than {LONGEST_LINE} bytes; a check is shorter.")
        if line.strip():
            yield number, line.removeprefix(b"\xef\xbb\xbf")


def _check(line: bytes, place: str) -> Check:
    try:
        record = json.loads(line.rstrip())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place} is no JSON ({json_fault(error)}); write an object like {_EXAMPLE}.") from None
    if not isinstance(record, dict):
        raise InputError(f"{place} is no JSON object; write one like {_EXAMPLE}.")
    kind = record.get("type")
    if not isinstance(kind, str) or kind not in KINDS:
        raise InputError(f"{place} has the type {kind!r}; allowed are {listed(KINDS)}.")
    try:
        return _made(KINDS[kind], record)
    except ValueError as error:
        raise InputError(f"{place} {error}.") from None


_EXAMPLE = '{"pdf": "a.pdf", "page": 1, "id": "a1", "type": "present", "text": "…"}'


def _made(kind: type[Check], record: dict[str, Any]) -> Check:
    """Raises ValueError for a field that is missing, unknown or of another type; null is as left out."""
    values = {name: value for name, value in record.items() if value is not None}
    hints = typing.get_type_hints(kind)
    for field in fields(kind):
        if field.name not in values and field.default is MISSING:
            raise ValueError(f"has no {field.name}, which a check of type {record['type']} needs")
    names = [field.name for field in fields(kind)]
    for name, value in values.items():
        if name not in names:
            raise ValueError(f"has {name!r}, which is no field of type {record['type']}: {listed(names, 20)}")
        _check_type(name, value, hints[name])
    check = kind(**values)
    _check_path(check.pdf)
    return check


def _check_type(name: str, value: Any, hint: Any) -> None:
    kinds = typing.get_args(hint) or (hint,)
    if type(value) not in kinds:
        raise ValueError(f"has {name} {_short(value)}; it must be {WORDS[kinds[0]]}")


def _short(value: Any) -> str:
    return cut(json.dumps(value, ensure_ascii=False))


def _check_path(pdf: str) -> None:
    path = PurePosixPath(pdf)
    if path.is_absolute() or ".." in path.parts or "\0" in pdf:
        raise ValueError(f"has pdf {_short(pdf)}; it must be a path below the documents' folder")
