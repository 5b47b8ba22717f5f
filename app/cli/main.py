"""The command line: `vlm VERB ...`, a verb a file. A verb's heavy imports are in its body, so that help is at once."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from vlm import __version__
from vlm.backends.threads import set_environment
from vlm_app.cli import demo, serve
from vlm_app.cli.artifacts import build, convert, export_triton, inspect, models
from vlm_app.cli.errors import INTERRUPTED, print_error
from vlm_app.cli.evaluation import bench, verify
from vlm_app.cli.evaluation import eval as evaluation
from vlm_app.cli.inference import encode, estimate, generate, ocr, run, summarize, translate
from vlm_app.cli.options.groups import GroupedCommand

app = typer.Typer(
    name="vlm",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
VERBS = (
    run,
    generate,
    ocr,
    estimate,
    translate,
    summarize,
    encode,
    serve,
    demo,
    convert,
    build,
    export_triton,
    verify,
    inspect,
    models,
)
for module in VERBS:
    name = module.__name__.rpartition(".")[2]
    app.command(name.replace("_", "-"), cls=GroupedCommand)(getattr(module, name))
app.add_typer(evaluation.app, name="eval")
app.add_typer(bench.app, name="bench")


def _version(show: bool) -> None:
    if show:
        print(f"vlm {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; may stand anywhere on the line.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which.")] = False,
) -> None:
    """Fast inference for vision-language and encoder-decoder models: convert, build, run.

    Text and data go to stdout, progress and timing to stderr. Exit codes: 0 done, 1 some pages failed, 2 your input
    (one sentence says what to change), 130 interrupted.
    """


def _write_utf8() -> None:
    """Writes UTF-8 into a pipe or file wherever we run; a terminal that lacks a character shows `?`."""
    if not isinstance(sys.stdout, io.TextIOWrapper):
        return
    if sys.stdout.isatty():
        sys.stdout.reconfigure(errors="replace")
    else:
        sys.stdout.reconfigure(encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Runs the `vlm` command."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if "--debug" in arguments:
        os.environ["VLM_DEBUG"] = "1"
        arguments = [argument for argument in arguments if argument != "--debug"]
    set_environment()
    _write_utf8()
    try:
        app(arguments)
    except KeyboardInterrupt:
        print_error("interrupted.")
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
