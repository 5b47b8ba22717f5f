"""Warnings as users read them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from vlm.errors import VlmWarning


@contextlib.contextmanager
def warnings_in_a_line(say: Callable[[str], object]) -> Iterator[None]:
    """Says ours, which are for users, without a file and line of Python, and drops Pillow's: files of which it warns
    are read."""
    default_show = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], filename: str, *rest: Any, **more: Any) -> None:
        if issubclass(category, VlmWarning):
            say(f"warning: {message}")
        elif Path(filename).parent.name != "PIL":
            default_show(message, category, filename, *rest, **more)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = default_show
