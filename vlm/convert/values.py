"""Configurations that no model has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from vlm.errors import ConfigError

ERRORS = (
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    ArithmeticError,
    AssertionError,
    RuntimeError,
    MemoryError,
)


@contextlib.contextmanager
def invalid_values(source: Path) -> Iterator[None]:
    """Turns what absurd values of a configuration end in, which is of many kinds, into a ConfigError."""
    try:
        yield
    except ERRORS as error:
        first = str(error).partition("\n")[0][:200].rstrip(".") or type(error).__name__
        raise ConfigError(
            f"the configuration of {source} holds a value that no model has ({first}); fetch it again."
        ) from error
