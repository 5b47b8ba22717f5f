"""Files of results, which a run of minutes ends with."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from vlm.errors import InputError


def check_writable(file: Path | None, option: str = "--json") -> None:
    """Raises InputError for a file that cannot be written, before minutes are spent; leaves no file behind."""
    if file is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refusal(file, option, error) from None
    check_opens(file, option)


def check_opens(file: Path, option: str) -> None:
    """Raises InputError for a file that cannot be opened to be written; it is as it was then, or not there."""
    is_new = not os.path.lexists(file)
    if not is_new and not file.is_file() and not file.is_dir():
        return  # a pipe would end when it is closed
    try:
        file.open("ab").close()
    except OSError as error:
        raise _refusal(file, option, error) from None
    if is_new:
        file.unlink()


def write_result(result: dict[str, Any], file: Path | None, option: str = "--json") -> None:
    """Writes a result, which is shown by then: it is not lost where the disk is full. Raises InputError."""
    if file is None:
        return
    try:
        file.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise _refusal(file, option, error) from None


def _refusal(file: Path, option: str, error: OSError) -> InputError:
    return InputError(f"{option} {file} cannot be written: {error.strerror}.")
