"""Warnings as users read them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from vlm.errors import VlmWarning


@contextlib.contextmanager
def warnings_in_a_line(say: Callable[[str], object]) -> Iterator[None]:
    """Says ours, which are for users, without a file and line of Python."""
    default_show = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if issubclass(category, VlmWarning):
            say(f"warning: {message}")
        else:
            default_show(message, category, *rest, **more)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = default_show
