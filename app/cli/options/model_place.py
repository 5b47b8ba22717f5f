"""What a verb says where its model is named as another verb's is, by an option or alone, and of other programs'
options."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from vlm_app.cli.options.other_names import in_place_of, takes_model

# typer has click's classes in a package of its own or not, and gives this one no name
UsageError: Any = typer.BadParameter.__base__
OPTION = ("--model", "-m")
ARGUMENTS = ("model", "models", "engine", "source")  # of verbs that take models alone


@contextmanager
def saying_where_models_stand(context: typer.Context, words: Collection[str]) -> Iterator[None]:
    """Adds to click's words about an unknown option, or a word too many of `words`, how the verb is told its model, or
    what to do in place of another program's option, or of several words behind one flag."""
    try:
        yield
    except UsageError as error:
        if advice := _advice(error, context, words):
            error.message, error.possibilities = f"{error.message.rstrip('.')}; {advice}", ()
        raise


def _advice(error: Any, context: typer.Context, words: Collection[str]) -> str | None:
    """Returns how the verb takes its model, where the error may come from another verb's way, or what to do in place of
    another program's option, or of several words behind one flag."""
    parameters, option = context.command.params, getattr(error, "option_name", None) or ""
    stands_alone = any(each.name in ARGUMENTS and each.param_type_name == "argument" for each in parameters)
    if stands_alone and (option in OPTION or takes_model(option)):
        return f"give the model without it: {context.command_path} MODEL."
    is_surplus = "unexpected extra argument" in error.message
    if is_surplus and any(word.partition("=")[0] in OPTION for word in words):
        return "write the flag before each value, and words that belong together in quotation marks."
    if (takes_model(option) or is_surplus) and any(OPTION[0] in parameter.opts for parameter in parameters):
        return f"a model is given with --model: {context.command_path} --model MODEL."
    return f"{instead}." if (instead := in_place_of(option)) else None
