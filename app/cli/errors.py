"""What a failed command tells its user: one sentence on stderr and an exit code."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import typer

from vlm.errors import VlmError

PARTLY_FAILED = 1  # some pages of a job
USER_ERROR = 2
INTERNAL_ERROR = 70  # EX_SOFTWARE
INTERRUPTED = 130


def debugging() -> bool:
    """`vlm --debug ...` asks for tracebacks."""
    return bool(os.environ.get("VLM_DEBUG"))


def complain(message: object) -> None:
    """One line of `vlm: ...` on stderr."""
    print(f"vlm: {message}", file=sys.stderr, flush=True)


def verb(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turns what a verb raises into a sentence and an exit code."""

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except typer.Exit:
            raise
        except BrokenPipeError:
            # the reader of our output has gone; Python would complain again when it flushes at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except KeyboardInterrupt:
            complain("interrupted.")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            if debugging():
                raise
            raise typer.Exit(_explain(error)) from None

    return guarded


def _explain(error: Exception) -> int:
    if isinstance(error, VlmError):
        complain(error)
        return USER_ERROR
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    complain(f"internal error, {reason}; `vlm --debug ...` shows where, please report it.")
    return INTERNAL_ERROR
