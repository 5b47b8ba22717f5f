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
from vlm_app.cli.errors import command, print_error
from vlm_app.cli.options import decoding
from vlm_app.cli.options.groups import LOADING, Group, takes
from vlm_app.core.load_options import LoadOptions
from vlm_app.core.processes.early_start import start_early
from vlm_app.core.processes.watchdog import Watchdog
from vlm_app.demo.config import DemoConfig
from vlm_app.demo.models import PACKAGED

GRACE_SECONDS = 6  # for answers, models and workers to end


@command
@takes(config=Group.making(DemoConfig), options=LOADING)
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
    config: DemoConfig,
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
    config = config.on_free_port()
    names = list(dict.fromkeys(models or PACKAGED))
    if config.media.workers:
        start_early(names, config.media.preload)
    serve_page = _serve_page()
    room = decoding.ROOM_FOR_ANOTHER if len(names) > 1 else {}
    pipelines = {name: decoding.load(name, options, **room) for name in names}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    Watchdog(GRACE_SECONDS)
    with serve_page(pipelines, config) as address:
        print_error(f"the demo is at {address}")
        threading.Event().wait()


def _serve_page() -> Callable[..., AbstractContextManager[str]]:
    try:
        from vlm_app.demo.run import serve_page
    except ImportError as error:
        raise InputError(f"vlm demo needs the package {error.name}: pip install 'vlm-runtime[demo]'.") from None
    return serve_page
