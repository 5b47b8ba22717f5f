"""Paths of the command line that are empty, as those of a shell's variable are that is not set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from vlm.errors import NAME_A_PLACE
from vlm_app.cli.errors import USER_ERROR, print_error


def check_paths(context: typer.Context, words: Sequence[str]) -> None:
    """Ends the verb with a sentence on a path that is empty: pathlib takes it for the folder that the verb runs in, and
    so would what it writes. `words`: what the context was made of."""
    given, _, _ = context.command.make_parser(context).parse_args([*words])
    for parameter in context.command.params:
        if "" in _several(given.get(parameter.name)) and Path() in _several(context.params.get(parameter.name)):
            print_error(f"{_label(parameter)} is empty; {NAME_A_PLACE}.")
            raise typer.Exit(USER_ERROR)


def _several(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _label(parameter: Any) -> str:
    """Returns what a user calls it: an option by its long flag, an argument as the help does."""
    return parameter.name.upper() if parameter.param_type_name == "argument" else max(parameter.opts, key=len)
