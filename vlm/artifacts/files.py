"""Files as artifacts need them: strict JSON, and directories that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from vlm.errors import VlmError, first_line
from vlm.limits import MAX_JSON_BYTES

MEND = "correct it there, or download or make the file again"  # what is to be done with a damaged one
TOO_DEEP, TOO_MANY_DIGITS = "it is nested too deeply", "a number in it has too many digits"
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: str | Path) -> BinaryIO:
    """Opens a file to read bytes. OSError, at once, for a pipe, a socket or a device, which may block or never end, and
    for what can be no path."""
    try:
        mode = os.stat(path).st_mode
    except ValueError as error:
        raise OSError(errno.EINVAL, f"it can be no path ({error})", str(path)) from None
    _check_regular(path, mode)  # some devices are changed by being opened
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _check_regular(path, os.fstat(descriptor).st_mode)  # it may be another one by now
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _check_regular(path: str | Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a file", str(path))


def read_small(path: Path, limit: int = MAX_JSON_BYTES) -> bytes:
    """Reads a whole file. OSError for one of more than `limit` bytes and for what is no file."""
    with open_regular(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))
    return content


def load_json(path: Path, limit: int = MAX_JSON_BYTES) -> Any:
    """Reads a value of any JSON type. Raises OSError and ValueError alone."""
    try:
        return json.loads(read_small(path, limit).decode("utf-8"))
    except RecursionError:
        raise ValueError(TOO_DEEP) from None


def json_fault(error: ValueError | RecursionError) -> str:
    """Returns why a text is no JSON, and where: `Expecting value in line 2 at column 7`."""
    if isinstance(error, json.JSONDecodeError):
        line = f" in line {error.lineno}" if "\n" in error.doc else ""
        return f"{error.msg.removesuffix(' at')}{line} at column {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return f"its byte {error.start + 1} is not UTF-8"
    if isinstance(error, RecursionError):
        return TOO_DEEP
    return TOO_MANY_DIGITS if "int_max_str_digits" in str(error) else first_line(error)


def read_json(path: Path, error: type[Exception], what: str) -> dict[str, Any]:
    """Returns a JSON object from a file; `error` says when it is missing, damaged or no object. `what` names the file's
    use."""
    try:
        value = load_json(path)
    except FileNotFoundError:
        absent = "give one that does" if path.parent.exists() else "there is no such folder, give one that is there"
        raise error(f"{path.parent} is no {what}: it holds no {path.name}; {absent}.") from None
    except OSError as reason:
        raise error(f"{path} cannot be read: {reason.strerror}.") from None
    except ValueError as reason:
        raise error(f"{path} is damaged: it is no valid JSON ({json_fault(reason)}); {MEND}.") from None
    if not isinstance(value, dict):
        raise error(f"{path} is damaged: it holds a JSON {type(value).__name__}, expected is an object; {MEND}.")
    return value


def canonical_json(value: Any) -> str:
    """Returns a value as JSON: the same value always gives the same text."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


@contextlib.contextmanager
def atomic_dir(out: Path, replaces: Callable[[Path], bool], what: str, error: type[VlmError]) -> Iterator[Path]:
    """Gives a directory to write into that becomes `out` on success and vanishes on any failure.

    An `out` that exists is replaced when it is empty or when `replaces(out)` says that it is an older one of its kind;
    anything else is the user's and an `error`.
    """
    out = out.resolve()
    check_replaceable(out, replaces, what, error)
    new_parents = [parent for parent in out.parents if not parent.exists()]
    draft = out.parent / f".{out.name}.{uuid.uuid4().hex[:12]}.tmp"
    try:
        draft.mkdir(parents=True)
        yield draft
        _swap(draft, out)
    except OSError as reason:
        shutil.rmtree(draft, ignore_errors=True)
        _remove_empty(new_parents)
        raise error(
            f"the {what} {out} cannot be written: {reason.strerror or reason}; choose another place or make room there."
        ) from reason
    except BaseException:  # an interrupt too leaves nothing behind
        shutil.rmtree(draft, ignore_errors=True)
        _remove_empty(new_parents)
        raise


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file that no other process sees in part, and makes its folder. Raises OSError; what does not come to its
    end leaves nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}")
    try:
        draft.write_bytes(content)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def check_replaceable(out: Path, replaces: Callable[[Path], bool], what: str, error: type[VlmError]) -> None:
    """Raises `error` for an `out` that `atomic_dir` would not replace."""
    if not os.path.lexists(out):
        return
    if _is_run_in(out):
        raise error(
            f"{out} holds the folder that this program runs in, which a {what} would take the place of: choose another"
            " output path."
        )
    if not out.is_dir():
        raise error(f"{out} is a file; the {what} needs a directory: choose another output path.")
    if any(out.iterdir()) and not replaces(out):
        raise error(f"{out} exists and is no {what}, so it is not replaced: choose another output path or remove it.")


def _is_run_in(folder: Path) -> bool:
    """Says whether this process, and perhaps its user's shell, is in a folder, which stays theirs when another one
    takes its name."""
    try:
        return Path.cwd().is_relative_to(folder)
    except OSError:  # it has been removed
        return False


def _swap(draft: Path, out: Path) -> None:
    if not out.is_dir():
        draft.rename(out)
        return
    old = draft.with_suffix(".old")
    out.rename(old)
    try:
        draft.rename(out)
    except OSError:
        old.rename(out)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _remove_empty(parents: list[Path]) -> None:
    """Removes the parent directories made for the draft, innermost first."""
    for parent in parents:
        with contextlib.suppress(OSError):  # somebody else uses it by now
            parent.rmdir()
