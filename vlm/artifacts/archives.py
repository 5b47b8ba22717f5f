"""Archives of model files (tar, plain or compressed), unpacked into the cache within bounds."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tarfile
import uuid
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal, cast

from vlm.artifacts.cache import cache_errors, cache_root
from vlm.artifacts.files import open_regular
from vlm.errors import CheckpointError, VlmError

MOST_MEMBERS = 10_000
LARGEST_GROWTH = 50  # bytes out for one in: weights do not shrink to a tenth
LARGEST_READ = 2**24  # bytes at a time, and so of a header
SMALL = 2**28  # bytes that any archive may unpack to
COPIED = 2**20  # bytes at a time
DONE = ".complete"


def unpacked(archive: Path, selects: Callable[[str], bool]) -> Path:
    """Returns a folder of the cache with an archive's wanted files, by their names alone, without folders.

    A file is there whole or not at all, and what an interrupted call unpacked is not written again. Raises
    CheckpointError for an archive that is damaged or larger than its size allows, and for members that are unsafe;
    EngineError where the cache cannot be written.
    """
    archive = archive.resolve()
    folder = cache_root() / "archives" / f"{archive.name.partition('.tar')[0]}-{_key(archive)}"
    if (folder / DONE).is_file():
        return folder
    with cache_errors(cache_root()):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with open_archive(archive) as tar:
            _write_members(tar, archive, folder, selects)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:  # damaged bzip2 is a bare OSError
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(":.")
        raise CheckpointError(
            f"{archive} is no tar archive, damaged or truncated ({reason}); fetch it again."
        ) from None
    with cache_errors(cache_root()):
        (folder / DONE).touch()
    return folder


@contextlib.contextmanager
def open_archive(archive: Path) -> Iterator[tarfile.TarFile]:
    """Opens a tar archive, plain or compressed, whose headers are read within bounds. OSError for what is no file."""
    with open_regular(archive) as file, _BoundedTar.open(fileobj=file) as tar:
        yield tar


def check_no_archive(path: Path, label: str, error: type[VlmError]) -> None:
    """Raises `error`, which begins with `label`, for an archive in the place of the folder that vlm convert makes of
    it."""
    try:
        with open_archive(path):
            pass
    except (tarfile.TarError, EOFError, zlib.error, OSError):
        return
    raise error(f"{label} is an archive; make a folder of it first: vlm convert {path} -o FOLDER, and give that.")


class _BoundedTar(tarfile.TarFile):
    """Bounds what a header may claim: a name or an attribute of gigabytes, which tarfile reads at once."""

    def __init__(self, name: str | None, mode: Literal["r"], fileobj: IO[bytes], **options: Any):
        super().__init__(name, mode, cast("IO[bytes]", _Bounded(fileobj)), **options)


class _Bounded:
    """A file that gives no more than so much at a time, and else is the file that it was made of."""

    def __init__(self, file: IO[bytes]):
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= LARGEST_READ:
            raise tarfile.ReadError(f"one of its headers claims {size:,} bytes")
        return self._file.read(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def bounded_members(tar: tarfile.TarFile, archive: Path) -> Iterator[tarfile.TarInfo]:
    """Yields the members. Raises CheckpointError where they are more, or unpack to more, than the archive's size
    allows."""
    budget = max(SMALL, LARGEST_GROWTH * archive.stat().st_size)
    for count, member in enumerate(tar):
        budget -= member.size
        if budget < 0 or count >= MOST_MEMBERS:
            raise CheckpointError(
                f"{archive} unpacks to far more than its size, so it is not unpacked; fetch it again."
            )
        yield member


def _key(archive: Path) -> str:
    stat = archive.stat()
    return hashlib.sha256(f"{archive} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:12]


def _write_members(tar: tarfile.TarFile, archive: Path, folder: Path, selects: Callable[[str], bool]) -> None:
    names: set[str] = set()
    for member in bounded_members(tar, archive):
        path = _path_within(member, archive)
        if member.isdir() or path.name.startswith("._") or not selects(path.name):
            continue
        source = _file_of(tar, member, archive)
        if path.name in names:
            raise CheckpointError(f"{archive} holds two files {path.name}; unpack it and give the folder of one model.")
        names.add(path.name)
        _write(source, member.size, folder / path.name)


def extract(tar: tarfile.TarFile, member: tarfile.TarInfo, archive: Path, folder: Path) -> None:
    """Writes a file of an archive, or makes a folder of it, below `folder`. Raises CheckpointError for a member that
    is neither, or lies elsewhere. (The filters of tarfile are not in every Python 3.11.)"""
    path = folder / _path_within(member, archive)
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    source = _file_of(tar, member, archive)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        shutil.copyfileobj(source, file, COPIED)


def _path_within(member: tarfile.TarInfo, archive: Path) -> PurePosixPath:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise CheckpointError(f"{archive} is not unpacked: its member {member.name} lies outside of it.")
    return path


def _file_of(tar: tarfile.TarFile, member: tarfile.TarInfo, archive: Path) -> IO[bytes]:
    source = tar.extractfile(member) if member.isfile() else None
    if source is None:
        raise CheckpointError(f"{archive} is not unpacked: its member {member.name} is a link or device.")
    return source


def _write(source: IO[bytes], size: int, path: Path) -> None:
    if path.is_file() and path.stat().st_size == size:
        return
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")  # another process may be at the same file
    with cache_errors(path.parent):
        try:
            with draft.open("wb") as file:
                file.writelines(_parts(source))
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise


def _parts(source: IO[bytes]) -> Iterator[bytes]:
    """Yields a member's content. Raises ReadError where it is damaged: what fails to be written is the cache's."""
    try:
        while part := source.read(COPIED):
            yield part
    except OSError as error:
        raise tarfile.ReadError(str(error)) from None
