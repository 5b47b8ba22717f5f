"""Puts files in place whole or not at all, and over nothing that is another's."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from vlm_app.core.storage import is_remote, is_taken, reaching

# what file systems say that have no links, or cannot be told to write through
UNSUPPORTED = {errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def write_whole(path: Path, text: str, draft: str, *, replace: bool) -> None:
    """Puts a file in place whole or not at all, by way of a file called `draft` beside it.

    Raises OSError: FileExistsError unless what is there may be replaced or holds this text.
    """
    content = _encoded(text)
    if is_remote(path):
        with reaching(path, "written"):
            path.fs.pipe_file(path.path, content)  # an object appears when it is complete
        return
    _make_folders(path.parent)
    draft_path = path.with_name(draft)
    try:
        _write_through(draft_path, content)
        os.replace(draft_path, path) if replace else _put_beside(draft_path, path, content)
    finally:
        with contextlib.suppress(OSError):
            draft_path.unlink()


def _make_folders(folder: Path) -> None:
    """Makes a folder, however deep: Python's own way does it by recursion."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)


def _write_through(path: Path, content: bytes) -> None:
    """Writes to the disk itself: a power cut leaves no empty file behind a name that stands."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()  # whatever is there: a link is not followed
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        try:
            os.fsync(file.fileno())
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise


def _put_beside(draft_path: Path, path: Path, content: bytes) -> None:
    """Gives a written file its name, which nothing else may have."""
    try:
        os.link(draft_path, path)
    except FileExistsError:
        _check_content(path, content)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        _check_content(path, content) if is_taken(path) else os.replace(draft_path, path)


def check_same(path: Path, text: str) -> None:
    """Raises FileExistsError for a file of another content."""
    with reaching(path):
        is_same = path.read_bytes() == _encoded(text)
    if not is_same:
        raise _other_file(path)


def _check_content(path: Path, content: bytes) -> None:
    if not path.is_file() or path.read_bytes() != content:
        raise _other_file(path)


def _other_file(path: Path) -> FileExistsError:
    return FileExistsError(errno.EEXIST, "another file is there", str(path))


def _encoded(text: str) -> bytes:
    return text.encode(errors="backslashreplace")
