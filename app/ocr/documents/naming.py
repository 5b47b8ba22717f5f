"""How outputs are called: names that follow from the documents of a run alone, so that runs which do not see each other
(the parts of a job) never give one name to two documents.

`report.pdf` -> `report`; where that could be another document's, `report.pdf`; else `report.pdf.<hash of its path>`.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from vlm_app.core.names import percent_encoded
from vlm_app.core.storage import key

LONGEST = 255  # bytes of a name, on most file systems
PARTIAL = ".partial"  # of what an interrupted job leaves
FORMATS = ("md", "mmd", "jsonl")
LONGEST_STEM = LONGEST - len(f"{PARTIAL}.jsonl")
DIGITS = 12  # of a hash; 48 bits


@dataclass(frozen=True)
class Source:
    """A document and the folder part of its output: where it lay below the folder that was given."""

    path: Path
    below: Path = Path()


@dataclass(frozen=True)
class Document:
    """A document and the names that its output may have: below the output folder, without suffix, the best first."""

    source: Path
    names: tuple[str, ...]
    pages: str | None = None  # to read of it; None: those that the job reads of every document


def name_all(sources: Iterable[Source]) -> list[Document]:
    """Returns the sources with their names. Which these are does not depend on the order."""
    all_names = [_Names.of_source(source) for source in sources]
    used_names = _UsedNames.by_all(all_names)
    return [Document(names.path, tuple(used_names.allowed(names))) for names in all_names]


def folded(name: str) -> str:
    """Returns what two names have in common that are one to some file system: `A` and `a`, and forms of `é`."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


@dataclass(frozen=True)
class _Names:
    """The names of one source, as they could be."""

    path: Path
    folder: PurePosixPath
    stem: str
    full: str
    unique: str

    @classmethod
    def of_source(cls, source: Source) -> _Names:
        folder = PurePosixPath(*(_fitting(part, LONGEST) for part in source.below.parts))
        full, mark = source.path.name, f".{_hash(key(source.path))}"
        unique = _fitting(full, LONGEST_STEM - len(mark)) + mark
        return cls(
            source.path,
            folder,
            stem=str(folder / _fitting(source.path.stem, LONGEST_STEM)),
            full=str(folder / _fitting(full, LONGEST_STEM)),
            unique=str(folder / unique),
        )


@dataclass
class _UsedNames:
    """What documents of a run may need: a name is free for one when no other could come to have it."""

    stems: Counter[str] = field(default_factory=Counter)
    full: Counter[str] = field(default_factory=Counter)
    folders: set[str] = field(default_factory=set)

    @classmethod
    def by_all(cls, all_names: Iterable[_Names]) -> _UsedNames:
        used_names = cls()
        for names in all_names:
            used_names.stems[folded(names.stem)] += names.stem != names.full
            used_names.full[folded(names.full)] += 1
            used_names.folders.update(folded(str(folder)) for folder in (names.folder, *names.folder.parents))
        return used_names

    def allowed(self, names: _Names) -> Iterator[str]:
        stem, full = folded(names.stem), folded(names.full)
        if self.stems[stem] == 1 and not self.full[stem] and self._is_file(stem):
            yield names.stem
        if self.full[full] == 1 and self._is_file(full):
            yield names.full
        yield names.unique

    def _is_file(self, name: str) -> bool:
        """Says whether outputs can be called so, where `a.partial` is an unfinished `a`, and folders have their
        names."""
        return not name.endswith(PARTIAL) and not any(f"{name}.{format}" in self.folders for format in FORMATS)


def _fitting(name: str, longest: int) -> str:
    """Returns a name that every file system takes, cut where it has more bytes; `~` and a hash tell two such apart."""
    clean = percent_encoded(name)
    if len(clean.encode()) <= longest:
        return clean
    mark = f"~{_hash(clean)}"
    return clean.encode()[: longest - len(mark)].decode(errors="ignore") + mark


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
