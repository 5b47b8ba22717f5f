"""The `vlm` command. Importing this imports next to nothing: every process that the command starts imports it again."""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import sys


def process() -> None:
    """Runs the `vlm` command as all that this process does. It ends without taking down what it has built, once
    everything is written and closed: with torch that takes up to a second."""
    codes = [1]  # an error that nobody expected
    atexit.register(_leave, codes)  # the first to be registered is the last to run
    from vlm_app.core.processes.watchdog import Watchdog

    Watchdog()  # the main thread may be in a library's function, which hears no Ctrl-C
    try:
        main()
    except SystemExit as end:
        codes[0] = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    codes[0] = 0


def _leave(codes: list[int]) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # it is full or closed, which a verb has told
            stream.flush()
    if "mpi4py" not in sys.modules:  # which says goodbye to its peers when Python is gone
        os._exit(codes[0])


def main(arguments: list[str] | None = None) -> None:
    """Runs the `vlm` command."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if "--debug" in arguments:
        os.environ["VLM_DEBUG"] = "1"
        arguments = [argument for argument in arguments if argument != "--debug"]
    _open_closed()
    _write_utf8()
    try:
        _run(arguments)
    except KeyboardInterrupt:
        from vlm_app.cli.errors import INTERRUPTED, print_error

        print_error("interrupted.")
        sys.exit(INTERRUPTED)


def _run(arguments: list[str]) -> None:
    from vlm.backends.threads import set_environment
    from vlm_app.cli.verbs import command_line_of

    set_environment()
    command_line_of(arguments)(arguments)


def _open_closed() -> None:
    """Opens what our caller has closed: stdin is empty, what is written to stdout fails, as it does for other programs,
    and what is written to stderr goes nowhere."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _write_utf8() -> None:
    """Writes UTF-8 into a pipe or file wherever we run; a terminal that lacks a character shows `?`."""
    if not isinstance(sys.stdout, io.TextIOWrapper):
        return
    if sys.stdout.isatty():
        sys.stdout.reconfigure(errors="replace")
    else:
        sys.stdout.reconfigure(encoding="utf-8")


if __name__ == "__main__":
    process()
