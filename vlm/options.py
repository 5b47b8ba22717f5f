"""What a field of a configuration is to people: the command line makes its options of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

KEY = "option"  # in a field's metadata


@dataclass(frozen=True)
class Option:
    """One option: its help, and what the field's own name, type and default do not say."""

    help: str
    flag: str | None = None  # where it is not called after the field
    default: str | None = None  # in words
    read: Callable[[str], Any] | None = None  # what is written -> the value; None: by the field's type


def option(value: Any, /, help: str, **more: Any) -> Any:
    """Returns a dataclass field with this default value that is an option; `more` goes to Option."""
    return dataclasses.field(default=value, metadata={KEY: Option(help, **more)})


def options_of(config: type) -> dict[str, Option]:
    """Returns the options of a dataclass by its fields' names."""
    return {field.name: field.metadata[KEY] for field in dataclasses.fields(config) if KEY in field.metadata}


def flag_of(config: type, name: str) -> str:
    """Returns what the command line calls a field."""
    own = options_of(config).get(name)
    return (own and own.flag) or default_flag(name)


def default_flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
