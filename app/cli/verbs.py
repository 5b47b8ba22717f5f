"""The command line: `vlm VERB ...`, a verb a file. A verb's heavy imports are in its body, so that help is at once."""

from __future__ import annotations

import importlib
from typing import Annotated

import typer

from vlm import __version__
from vlm_app.cli.options.groups import GroupedCommand

# in the order of the help; the file of each, which has a function of its name, or an app of several
VERBS = {
    "run": "inference.run",
    "generate": "inference.generate",
    "ocr": "inference.ocr",
    "estimate": "inference.estimate",
    "translate": "inference.translate",
    "summarize": "inference.summarize",
    "encode": "inference.encode",
    "serve": "serve",
    "demo": "demo",
    "convert": "artifacts.convert",
    "quantize": "artifacts.quantize",
    "build": "artifacts.build",
    "export-triton": "artifacts.export_triton",
    "verify": "evaluation.verify",
    "inspect": "artifacts.inspect",
    "models": "artifacts.models",
    "eval": "evaluation.eval",
    "bench": "evaluation.bench",
}


def command_line(word: str | None = None) -> typer.Typer:
    """Returns the command line with the verb of that name alone: the others' files are not imported. Where there is
    none it has them all."""
    app = typer.Typer(
        name="vlm",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(_options)
    for name in [word] if word in VERBS else VERBS:
        _add(app, name)
    return app


def command_line_of(arguments: list[str]) -> typer.Typer:
    """Returns the command line that runs these arguments."""
    return command_line(next((word for word in arguments if not word.startswith("-")), None))


def _add(app: typer.Typer, name: str) -> None:
    module = importlib.import_module(f"vlm_app.cli.{VERBS[name]}")
    if hasattr(module, "app"):
        app.add_typer(module.app, name=name)
    else:
        app.command(name, cls=GroupedCommand)(getattr(module, name.replace("-", "_")))


def _version(show: bool) -> None:
    if show:
        print(f"vlm {__version__}")
        raise typer.Exit


def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; may stand anywhere on the line.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which.")] = False,
) -> None:
    """Fast inference for vision-language and encoder-decoder models: convert, build, run.

    Text and data go to stdout, progress and timing to stderr. Exit codes: 0 done, 1 some pages failed, 2 your input
    (one sentence says what to change), 130 interrupted.
    """
