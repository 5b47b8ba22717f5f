"""`vlm demo`: models in a page of the browser."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Annotated

import typer

from vlm.errors import InputError
from vlm.processing.worker_process import Budget
from vlm_app.cli import decoding
from vlm_app.cli.errors import command, print_error
from vlm_app.cli.option_groups import LOADING, takes
from vlm_app.core.load_options import LoadOptions
from vlm_app.core.watchdog import Watchdog
from vlm_app.demo.config import DemoConfig
from vlm_app.demo.models import PACKAGED

DEFAULTS = DemoConfig()
GRACE_SECONDS = 6  # for answers, models and workers to end


@command
@takes(options=LOADING)
def demo(
    *,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"What --model of `vlm run` takes. [default: {', '.join(PACKAGED)}]",
            metavar="[MODEL]",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 is everywhere.")] = DEFAULTS.host,
    port: Annotated[int, typer.Option(help="0: any that is free.")] = DEFAULTS.port,
    share: Annotated[bool, typer.Option("--share", help="A public address, through gradio's servers.")] = False,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(help="A name that browsers may have for the page, or *; again for more. [default: its own]"),
    ] = None,
    allowed_origin: Annotated[
        list[str] | None,
        typer.Option(help="Of other sites that may use it (https://a.example), or *; again for more. [default: none]"),
    ] = None,
    media_seconds: Annotated[
        float, typer.Option(help="For reading a file; then it is refused.")
    ] = DEFAULTS.media.seconds,
    media_memory_mb: Annotated[
        int, typer.Option(help="That reading a file may take in its process.")
    ] = DEFAULTS.media.memory_mb,
    options: LoadOptions,
) -> None:
    """Try models in the browser: ask about images, read documents, translate and summarize.

    Models are loaded at the start, each goes to the tab that it is for; a tab without a model is left out. Nothing but
    --share needs a network. Ctrl-C ends.

    \b
    Examples:
      vlm demo
      vlm demo facebook/nougat-base llava-hf/llava-1.5-7b-hf --host 0.0.0.0
      vlm demo mini-t5 --port 0
    """
    config = DemoConfig(
        host,
        port,
        share,
        allowed_hosts=tuple(allowed_host or ()),
        allowed_origins=tuple(allowed_origin or ()),
        media=Budget(media_seconds, media_memory_mb),
    ).on_free_port()
    names = list(dict.fromkeys(models or PACKAGED))
    running = _running()
    room = decoding.ROOM_FOR_ANOTHER if len(names) > 1 else {}
    pipelines = {name: decoding.load(name, options, **room) for name in names}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    Watchdog(GRACE_SECONDS)
    with running(pipelines, config) as address:
        print_error(f"the demo is at {address}")
        threading.Event().wait()


def _running() -> Callable[..., AbstractContextManager[str]]:
    try:
        from vlm_app.demo.run import running
    except ImportError as error:
        raise InputError(f"vlm demo needs the package {error.name}: pip install 'vlm-runtime[demo]'.") from None
    return running
