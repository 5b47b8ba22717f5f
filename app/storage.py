"""Where documents lie and texts go: local paths, and with the extra `ocr-cluster` any fsspec URL (s3://…), which acts
as a `Path` here."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from vlm.errors import DocumentError, InputError, VlmError

EXTRA = "pip install 'vlm-runtime[ocr-cluster]'"
CHUNK = 2**20  # bytes


def location(given: str | Path) -> Path:
    """A path, or for a URL an object that acts as one; InputError where it cannot be reached."""
    if isinstance(given, Path) or "://" not in str(given):
        return Path(given)
    try:
        from upath import UPath

        return UPath(given)
    except ImportError as error:
        raise InputError(f"{given} needs the package {error.name}: {EXTRA}.") from None
    except ValueError as error:
        raise InputError(f"{given} is no URL that can be read: {error}.") from None


def is_remote(path: Path) -> bool:
    return hasattr(path, "fs")


@contextlib.contextmanager
def reaching(path: Path, what: str = "reached") -> Iterator[None]:
    """What a file system or its client raises, which is of many kinds, becomes one sentence (InputError)."""
    try:
        yield
    except VlmError:
        raise
    except OSError as error:
        raise InputError(f"{path} cannot be {what}: {error.strerror or error}.") from error
    except Exception as error:
        if not is_remote(path):
            raise
        raise InputError(f"{path} cannot be {what}: {error}.") from error


def files_below(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Files in a folder and its folders, and the folder of each below this one; sorted, hidden ones left out."""
    if is_remote(folder):
        for name, _ in objects_below(folder):
            yield folder.joinpath(*name.parts), Path(*name.parent.parts)
        return
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith("."):
                yield Path(where, name), Path(where).relative_to(folder)


def objects_below(folder: Path) -> Iterator[tuple[PurePosixPath, dict[str, Any]]]:
    """Names below a folder of a store, and what its client says of each; sorted, hidden ones left out."""
    root = PurePosixPath(folder.path)
    for found, info in sorted(folder.fs.find(folder.path, detail=True).items()):
        name = PurePosixPath(folder.fs._strip_protocol(found)).relative_to(root)
        if not any(part.startswith(".") for part in name.parts):
            yield name, info


def key(path: Path) -> str:
    """A file's name that does not depend on how it was given."""
    return str(path) if is_remote(path) else str(path.resolve())


class Presence:
    """Says which files are there. A folder of a store is listed once: a question a file takes hours for many."""

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {}

    def __call__(self, path: Path) -> bool:
        with reaching(path):
            return path.name in self._listed(path.parent) if is_remote(path) else path.exists()

    def _listed(self, folder: Path) -> set[str]:
        if str(folder) not in self._names:
            try:
                found = folder.fs.ls(folder.path, detail=False)
            except FileNotFoundError:
                found = []
            self._names[str(folder)] = {PurePosixPath(name).name for name in found}
        return self._names[str(folder)]


@dataclass(frozen=True)
class Seen:
    """A file as it is found."""

    stamp: str  # changes when the file is written; costs no reading
    modified: str  # when it was written last, ISO 8601 in UTC; "" where the file system does not say


def seen(path: Path) -> Seen:
    """InputError where the file cannot be reached."""
    with reaching(path):
        if is_remote(path):
            return seen_object(path.fs.info(path.path))
        found = path.stat()
        modified = datetime.fromtimestamp(found.st_mtime, UTC).isoformat(timespec="seconds")
        return Seen(f"{found.st_size}-{found.st_mtime_ns}", modified)


def seen_object(info: dict[str, Any]) -> Seen:
    """The same of what a store's client says of an object."""
    when = next((info[name] for name in ("LastModified", "mtime", "updated", "created") if info.get(name)), None)
    modified = when.astimezone(UTC).isoformat(timespec="seconds") if isinstance(when, datetime) else str(when or "")
    return Seen(f"{info.get('size')}-{info.get('ETag', '')}-{modified}", modified)


def digest(path: Path) -> str:
    """SHA-256 of a file's content."""
    found = hashlib.sha256()
    with reaching(path), path.open("rb") as file:
        while chunk := file.read(CHUNK):
            found.update(chunk)
    return found.hexdigest()


class LocalCopy:
    """A file on this machine: itself, or a copy that goes when this object does."""

    def __init__(self, path: Path):
        self._folder = tempfile.TemporaryDirectory(prefix="vlm-ocr-") if is_remote(path) else None
        self.source = self.path = path
        if self._folder:
            self.path = Path(self._folder.name, path.name)
            self._fetch()

    def _fetch(self) -> None:
        try:
            self.source.fs.get_file(self.source.path, str(self.path))
        except Exception as error:  # clients raise errors of many kinds
            raise DocumentError(f"{self.source} cannot be fetched: {error}.", "not fetched") from error

    def named(self, text: str) -> str:
        """A message about the copy, told of the source."""
        return text.replace(str(self.path), str(self.source))


def write_atomic(path: Path, text: str) -> None:
    """Puts a file in place whole or not at all; InputError where that fails."""
    with reaching(path, "written"):
        if is_remote(path):
            path.fs.pipe_file(path.path, text.encode())  # an object appears when it is complete
        else:
            _replace(path, text)


def remove(path: Path) -> None:
    """Where there is such a file."""
    with reaching(path), contextlib.suppress(FileNotFoundError):
        path.unlink()


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # one job at a time writes here: what a killed one left is written over
    draft = path.with_name(f".{path.name}.tmp")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)
