"""The `vlm` command. Importing this imports next to nothing: every process that the command starts imports it again."""

from __future__ import annotations

import io
import os
import sys


def main(arguments: list[str] | None = None) -> None:
    """Runs the `vlm` command."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if "--debug" in arguments:
        os.environ["VLM_DEBUG"] = "1"
        arguments = [argument for argument in arguments if argument != "--debug"]
    _write_utf8()
    try:
        _run(arguments)
    except KeyboardInterrupt:
        from vlm_app.cli.errors import INTERRUPTED, print_error

        print_error("interrupted.")
        sys.exit(INTERRUPTED)


def _run(arguments: list[str]) -> None:
    from vlm.backends.threads import set_environment
    from vlm_app.cli.verbs import command_line

    set_environment()
    command_line(next((word for word in arguments if not word.startswith("-")), None))(arguments)


def _write_utf8() -> None:
    """Writes UTF-8 into a pipe or file wherever we run; a terminal that lacks a character shows `?`."""
    if not isinstance(sys.stdout, io.TextIOWrapper):
        return
    if sys.stdout.isatty():
        sys.stdout.reconfigure(errors="replace")
    else:
        sys.stdout.reconfigure(encoding="utf-8")


if __name__ == "__main__":
    main()
