"""What a job reads: paths, URLs and folders -> documents, and the part of them that is one job's."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from vlm.errors import InputError, counted, listed
from vlm_app.core.storage import files_below, is_remote, key, location, reaching
from vlm_app.ocr.documents.naming import Document, Source
from vlm_app.ocr.documents.search import FolderSearch

NEXT = "give images, PDFs or folders of them"
STDIN = f"- is stdin, which is read by vlm run --image - alone; {NEXT}."


@dataclass
class SearchResult:
    """What lies below the paths that were given."""

    sources: list[Source] = field(default_factory=list)
    unreadable: list[tuple[Path, str]] = field(default_factory=list)  # folders that cannot be read, and why
    other_files: Counter[str] = field(default_factory=Counter)  # no documents by their names; by their endings


@dataclass(frozen=True)
class Shard:
    """One of `count` parts of the documents, each part a job of its own with its own ledger."""

    index: int  # from 0
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Reads `0/4`; InputError for what is none."""
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if not match or int(match[1]) >= int(match[2]):
            raise InputError(f"--shard is {text!r}; write 0/4, 1/4, 2/4 or 3/4 for a part of four.")
        return cls(int(match[1]), int(match[2]))

    @property
    def name(self) -> str:
        return f".{self.index}-of-{self.count}"

    def select(self, documents: Iterable[Document]) -> list[Document]:
        """Returns the part's documents. Where one belongs does not depend on the others."""
        return [document for document in documents if self._number(document) % self.count == self.index]

    @staticmethod
    def _number(document: Document) -> int:
        return int.from_bytes(hashlib.sha256(key(document.source).encode()).digest()[:8])


def find_documents(paths: Iterable[str | Path]) -> SearchResult:
    """Finds files as they are given, and searches folders for images and PDFs; sorted, each once.

    Raises InputError for a path that does not exist, and when there is nothing to read.
    """
    from vlm.processing.media.documents.document import supported_suffixes

    paths = [location(path) for path in paths]
    search, other_files = FolderSearch(), Counter[str]()
    sources: dict[str, Source] = {}
    for path in paths:
        for source in _documents(path, search, other_files):
            name = key(source.path)
            if name not in sources or (_is_link(sources[name]) and not _is_link(source)):  # called after itself
                sources[name] = source
    if not sources:
        reasons = "".join(f" ({folder} cannot be searched: {reason})" for folder, reason in search.unreadable[:1])
        raise InputError(f"there is no document in {listed(paths)}{reasons}; read are {supported_suffixes()}.")
    return SearchResult(list(sources.values()), search.unreadable, other_files)


def other_files_notice(other_files: Counter[str]) -> str:
    """Tells of files that were not looked at: documents that are called otherwise, or of kinds that are not read."""
    kinds = [f"{count:,} {ending or 'without an ending'}" for ending, count in other_files.most_common()]
    return f"left out: {counted(other_files.total(), 'file')} whose names are not those of documents ({listed(kinds)})."


def _is_link(source: Source) -> bool:
    return not is_remote(source.path) and source.path.is_symlink()


def _documents(path: Path, search: FolderSearch, other_files: Counter[str]) -> Iterator[Source]:
    from vlm.processing.media.documents.document import is_document

    with reaching(path):
        if not path.exists():
            raise InputError(STDIN if str(path) == "-" else f"{path} does not exist; {NEXT}.")
        if not path.is_dir():
            yield Source(path)
            return
        for file, below in files_below(path) if is_remote(path) else search.files(path):
            if is_document(file.name):
                yield Source(file, below)
            else:
                other_files[file.suffix.lower()] += 1
