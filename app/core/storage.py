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
from typing import TYPE_CHECKING, Any, TypeGuard, cast
from urllib.parse import unquote_to_bytes

from vlm.errors import NAME_A_PLACE, DocumentError, InputError, VlmError
from vlm_app.core.names import as_text, is_utf8, percent_encoded

EXTRA = "pip install 'vlm-runtime[ocr-cluster]'"
OF_THIS_MACHINE = "file:///"
LONGEST_SUFFIX = 16  # characters that the name of a local copy keeps

if TYPE_CHECKING:

    class RemotePath(Path):
        """What a UPath is taken for: a path with a client of its store, and the name that this client knows."""

        fs: Any
        path: str


def location(address: str | Path) -> Path:
    """Returns a path, or for a URL of another machine an object that acts as one; InputError where it cannot be
    reached, and for an empty path, such as a shell's variable that is not set."""
    if address == "":
        raise InputError(f"a path is empty; {NAME_A_PLACE}.")
    if isinstance(address, Path) or "://" not in str(address):
        return Path(address)
    if address.startswith(OF_THIS_MACHINE):
        return Path(os.fsdecode(unquote_to_bytes(os.fsencode("/" + address.removeprefix(OF_THIS_MACHINE)))))
    try:
        from upath import UPath

        return cast("RemotePath", UPath(address))
    except ImportError as error:
        raise InputError(f"{address} needs the package {error.name}: {EXTRA}.") from None
    except ValueError as error:
        raise InputError(f"{address} is no URL that can be read: {error}.") from None


def is_remote(path: Path) -> TypeGuard[RemotePath]:
    return hasattr(path, "fs")


@contextlib.contextmanager
def reaching(path: Path, what: str = "reached") -> Iterator[None]:
    """Turns what a file system or its client raises, which is of many kinds, into one sentence (InputError)."""
    try:
        yield
    except VlmError:
        raise
    except OSError as error:
        kind = "missing" if isinstance(error, FileNotFoundError) else "not reached"
        raise InputError(f"{path} cannot be {what}: {error.strerror or error}.", kind) from error
    except Exception as error:
        if not is_remote(path):
            raise
        raise InputError(f"{path} cannot be {what}: {error}.") from error


def files_below(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Yields files in a folder and its folders, and the folder of each below this one; sorted, hidden ones left out."""
    if is_remote(folder):
        for name, _ in objects_below(folder):
            yield folder.joinpath(*name.parts), Path(*name.parent.parts)
        return
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith("."):
                yield Path(where, name), Path(where).relative_to(folder)


def objects_below(folder: RemotePath) -> Iterator[tuple[PurePosixPath, dict[str, Any]]]:
    """Yields names below a folder of a store, and what its client says of each; sorted, hidden ones left out."""
    root = PurePosixPath(folder.path)
    for path, info in sorted(folder.fs.find(folder.path, detail=True).items()):
        name = PurePosixPath(folder.fs._strip_protocol(path)).relative_to(root)
        if not any(part.startswith(".") for part in name.parts):
            yield name, info


def key(path: Path) -> str:
    """Returns a file's name that does not depend on how it was given, as text that UTF-8 can hold."""
    return str(path) if is_remote(path) else as_text(Path(os.path.realpath(path)))


class Presence:
    """Says which files are there. A folder of a store is listed once: a question a file takes hours for many."""

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {}

    def __call__(self, path: Path) -> bool:
        with reaching(path):
            return path.name in self._listed(path.parent) if is_remote(path) else is_taken(path)

    def _listed(self, folder: RemotePath) -> set[str]:
        if str(folder) not in self._names:
            try:
                paths = folder.fs.ls(folder.path, detail=False)
            except FileNotFoundError:
                paths = []
            self._names[str(folder)] = {PurePosixPath(name).name for name in paths}
        return self._names[str(folder)]


def is_taken(path: Path) -> bool:
    """Says whether there is anything of that name, be it a link that leads nowhere."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


@dataclass(frozen=True)
class FileState:
    """A file as it is found."""

    stamp: str  # changes when the file is written; costs no reading
    modified: str  # when it was written last, ISO 8601 in UTC; "" where the file system does not say


def file_state(path: Path) -> FileState:
    """Looks at a file. Raises InputError where the file cannot be reached."""
    with reaching(path):
        if is_remote(path):
            return object_state(path.fs.info(path.path))
        stat = path.stat()
        return FileState(f"{stat.st_size}-{stat.st_mtime_ns}", _iso_8601(stat.st_mtime))


def regular_file_state(path: Path) -> FileState:
    """Returns the same; DocumentError for a pipe, a device or a folder, of which a read may never end."""
    state = file_state(path)
    if not is_remote(path) and not path.is_file():
        raise DocumentError(f"{path} is no regular file; give images and PDFs.", "no file")
    return state


def object_state(info: dict[str, Any]) -> FileState:
    """Reads the same out of what a store's client says of an object."""
    when = next((info[name] for name in ("LastModified", "mtime", "updated", "created") if info.get(name)), None)
    modified = _iso_8601(when)
    return FileState(f"{info.get('size')}-{info.get('ETag', '')}-{modified or when}", modified)


def _iso_8601(when: datetime | float | str | None) -> str:
    """Returns a time as ISO 8601 in UTC; "" for none, and outside of the years 1 to 9999, which it cannot tell."""
    if isinstance(when, str):
        return when
    try:
        when = datetime.fromtimestamp(when, UTC) if isinstance(when, int | float) else when
        return when.astimezone(UTC).isoformat(timespec="seconds") if when else ""
    except (ValueError, OverflowError, OSError):
        return ""


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file's content."""
    with reaching(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class LocalCopy:
    """A file on this machine under a name that every library can open: itself, or a copy of a remote one or a link to
    one whose name is no UTF-8; these go when this object does."""

    def __init__(self, path: Path):
        self.source = self.path = path
        if is_remote(path) or not is_utf8(str(path)):
            self._folder = tempfile.TemporaryDirectory(prefix="vlm-ocr-")
            self.path = Path(self._folder.name, f"document{percent_encoded(path.suffix)[:LONGEST_SUFFIX]}")
            self._fetch(path) if is_remote(path) else self.path.symlink_to(path.absolute())

    def _fetch(self, source: RemotePath) -> None:
        try:
            source.fs.get_file(source.path, str(self.path))
        except Exception as error:  # clients raise errors of many kinds
            raise DocumentError(f"{source} cannot be fetched: {error}.", "not fetched") from error

    def named(self, text: str) -> str:
        """Returns a message about the copy, told of the source."""
        return text.replace(str(self.path), str(self.source))


def remove(path: Path) -> None:
    """Removes a file where there is one."""
    with reaching(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        path.unlink()
