"""Packages of extras, imported where they are used."""

from __future__ import annotations

import importlib
from typing import Any

from vlm.errors import InputError


def library(module: str, package: str, *, extra: str, verb: str) -> Any:
    """Returns a module of a package. Raises InputError, with the pip command, where that is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(
            f"{package} is not installed; pip install 'vlm-runtime[{extra}]' brings what {verb} needs."
        ) from None
