"""What a verb says where its model is named as another verb's is: by an option, or alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

# typer has click's classes in a package of its own or not, and gives this one no name
UsageError: Any = typer.BadParameter.__base__
OPTION = ("--model", "-m")
ARGUMENTS = ("model", "models", "engine", "source")  # of verbs that take models alone


@contextmanager
def saying_where_models_stand(context: typer.Context) -> Iterator[None]:
    """Adds to click's words about an unknown option, or a word too many, how the verb is told its model."""
    try:
        yield
    except UsageError as error:
        if place := _place(error, context):
            error.message, error.possibilities = f"{error.message.rstrip('.')}; {place}", ()
        raise


def _place(error: Any, context: typer.Context) -> str | None:
    """Returns how the verb takes its model, where the error may come from another verb's way."""
    parameters = context.command.params
    takes_option = any(OPTION[0] in parameter.opts for parameter in parameters)
    if getattr(error, "option_name", None) in OPTION and any(each.name in ARGUMENTS for each in parameters):
        return f"give the model without it: {context.command_path} MODEL."
    if takes_option and "unexpected extra argument" in error.message:
        return f"a model is given with --model: {context.command_path} --model MODEL."
    return None
