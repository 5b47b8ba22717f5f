"""What a job reads: paths, URLs and folders -> documents, and where each one's text goes."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from vlm.errors import InputError, listed
from vlm_app.storage import files_below, key, location, reaching


@dataclass(frozen=True)
class Source:
    """A document and the folder part of its output: where it lay below the folder that was given."""

    path: Path
    below: Path = Path()


@dataclass(frozen=True)
class Target:
    """A document and the file that its text goes to."""

    source: Path
    out: Path


@dataclass(frozen=True)
class Shard:
    """One of `count` parts of the documents, each part a job of its own with its own ledger."""

    index: int  # from 0
    count: int

    @classmethod
    def parse(cls, given: str) -> Shard:
        """`0/4`; InputError for what is none."""
        match = re.fullmatch(r"(\d+)/(\d+)", given)
        if not match or int(match[1]) >= int(match[2]):
            raise InputError(f"--shard is {given!r}; write 0/4, 1/4, 2/4 or 3/4 for a part of four.")
        return cls(int(match[1]), int(match[2]))

    @property
    def name(self) -> str:
        return f".{self.index}-of-{self.count}"

    def of(self, targets: Iterable[Target]) -> list[Target]:
        """Its documents. Where one belongs does not depend on the others."""
        return [target for target in targets if self._number(target) % self.count == self.index]

    @staticmethod
    def _number(target: Target) -> int:
        return int.from_bytes(hashlib.sha256(key(target.source).encode()).digest()[:8])


def find_documents(paths: Iterable[str | Path]) -> list[Source]:
    """Files as they are given, folders searched through for images and PDFs; sorted, each once.

    Raises InputError for a path that does not exist, and when there is nothing to read.
    """
    from vlm.processing.documents import supported_suffixes

    paths = [location(path) for path in paths]
    found: dict[str, Source] = {}
    for path in paths:
        for source in _documents(path):
            found.setdefault(key(source.path), source)
    if not found:
        raise InputError(f"there is no document in {listed(paths)}; read are {supported_suffixes()}.")
    return list(found.values())


def _documents(path: Path) -> Iterator[Source]:
    from vlm.processing.documents import is_document

    with reaching(path):
        if not path.exists():
            raise InputError(f"{path} does not exist; give images, PDFs or folders of them.")
        if not path.is_dir():
            yield Source(path)
            return
        for file, below in files_below(path):
            if is_document(file.name):
                yield Source(file, below)


def plan_outputs(sources: Iterable[Source], out: Path, suffix: str) -> list[Target]:
    """One output file a document: `report.pdf` -> `report.md`; names that would clash (a.png and a.pdf) keep their old
    suffix (`a.png.md`), and documents that still clash are numbered in order (`a.png.2.md`)."""
    sources = list(sources)
    stems = Counter(_key(source, source.path.stem) for source in sources)
    taken: set[str] = set()
    targets = []
    for source in sources:
        unique = stems[_key(source, source.path.stem)] == 1
        name = _free(source, source.path.stem if unique else source.path.name, taken)
        targets.append(Target(source.path, out.joinpath(*source.below.parts, f"{name}{suffix}")))
    return targets


def _free(source: Source, name: str, taken: set[str]) -> str:
    chosen, number = name, 1
    while _key(source, chosen) in taken:
        number += 1
        chosen = f"{name}.{number}"
    taken.add(_key(source, chosen))
    return chosen


def _key(source: Source, name: str) -> str:
    # some file systems do not tell `A.md` from `a.md`
    return str(source.below / name).casefold()
