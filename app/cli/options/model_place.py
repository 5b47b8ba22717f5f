"""What a verb says where its model is named as another verb's is, by an option or alone, and of other programs'
options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer

from vlm_app.cli.options.other_names import in_place_of, of_letter, takes_model

# typer has click's classes in a package of its own or not, and gives this one no name
UsageError: Any = typer.BadParameter.__base__
OPTION = ("--model", "-m")
ARGUMENTS = ("model", "models", "engine", "source")  # of verbs that take models alone


@contextmanager
def saying_where_models_stand(context: typer.Context, words: Sequence[str]) -> Iterator[None]:
    """Adds to click's words about a word too many how the verb is told its model, or what several words behind one flag
    lack, and tells of all options among the `words` that it lacks, in a line each, what to do in place of another
    program's."""
    try:
        yield
    except UsageError as error:
        if _is_unknown(error):
            error.message, error.possibilities = _all_unknown(context, words), ()
        elif advice := _advice(error, context, words):
            error.message = f"{error.message.rstrip('.')}; {advice}"
        raise


def _is_unknown(error: Any) -> bool:
    return hasattr(error, "possibilities")


def _all_unknown(context: typer.Context, arguments: Sequence[str]) -> str:
    """Returns a line for each option that the verb lacks, or for those of which the same is to be said."""
    lines: dict[str, list[str]] = {}
    for error in _unknown_options(context, arguments):
        advice = _advice(error, context, arguments)
        text = f"No such option: {{}}; {advice}" if advice else error.format_message()
        names = lines.setdefault(text, [])
        names += [error.option_name] * (error.option_name not in names)
    return "\n".join(text.replace("{}", ", ".join(names)) for text, names in lines.items())


def _unknown_options(context: typer.Context, arguments: Sequence[str]) -> Iterator[Any]:
    """Yields click's errors of the options that the verb lacks, in their order."""
    rest, parser = list(arguments), context.command.make_parser(context)
    for _ in arguments:
        try:
            parser.parse_args(args=list(rest))
        except UsageError as error:
            if not _is_unknown(error):
                return
            yield error
            rest = _without(rest, error.option_name)
        else:
            return


def _without(arguments: Sequence[str], option: str) -> list[str]:
    """Returns the arguments without those that are this option, or hold this letter."""
    return [word for word in arguments if word.partition("=")[0] != option and not _holds(word, option)]


def _holds(word: str, letter: str) -> bool:
    return len(letter) == 2 and word[:1] == "-" and word[:2] != "--" and letter[1] in word


def _advice(error: Any, context: typer.Context, words: Sequence[str]) -> str | None:
    """Returns how the verb takes its model, where the error may come from another verb's way, or what to do in place of
    another program's option, or of several words behind one flag."""
    parameters, option = context.command.params, getattr(error, "option_name", None) or ""
    flags = {flag for parameter in parameters for flag in parameter.opts}
    stands_alone = any(each.name in ARGUMENTS and each.param_type_name == "argument" for each in parameters)
    option = of_letter(option) if stands_alone else option
    if stands_alone and (option in OPTION or takes_model(option)):
        return f"give the model without it: {context.command_path} MODEL."
    is_surplus = "unexpected extra argument" in error.message
    if is_surplus and any(word.partition("=")[0] in OPTION for word in words):
        return "write the flag before each value, and words that belong together in quotation marks."
    if (takes_model(option) or is_surplus) and OPTION[0] in flags:
        return f"a model is given with --model: {context.command_path} --model MODEL."
    return f"{instead}." if (instead := in_place_of(option, flags)) else None
