"""What a failed command tells its user: one sentence on stderr and an exit code."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import typer

from vlm.errors import VlmError
from vlm.interrupts import Terminated
from vlm_app.core.names import printable
from vlm_app.core.renamed import with_flags
from vlm_app.core.warning_lines import warnings_in_a_line

PARTLY_FAILED = 1  # some pages of a job
USER_ERROR = 2
INTERNAL_ERROR = 70  # EX_SOFTWARE
INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM
# what a disk or a folder refuses, and no mistake of the program's
REFUSED = {
    errno.EBADF,
    errno.EFBIG,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.ENAMETOOLONG,
}

UNMAPPED = "failed to map segment"  # of a library that is loaded, for want of memory
NO_MEMORY = "there is too little memory; close other programs, raise a limit of this one (ulimit -v), or ask for less."


def debugging() -> bool:
    """Says whether `vlm --debug ...` asks for tracebacks."""
    return bool(os.environ.get("VLM_DEBUG"))


def print_error(message: str | VlmError) -> None:
    """Prints one line of `vlm: ...` on stderr."""
    text = message if isinstance(message, str) else with_flags(message)
    print(f"vlm: {printable(text)}", file=sys.stderr, flush=True)


def command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turns what a verb raises into a sentence and an exit code."""

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            with warnings_in_a_line(print_error):
                result = function(*args, **kwargs)
            sys.stdout.flush()  # a full disk is told of here, not by Python at its exit
            return result
        except typer.Exit:
            raise
        except BrokenPipeError:
            _drop_output()  # its reader has gone
            raise typer.Exit(0) from None
        except Terminated:
            print_error("ended by SIGTERM.")
            raise typer.Exit(TERMINATED) from None
        except KeyboardInterrupt:
            print_error("interrupted.")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            if debugging():
                raise
            raise typer.Exit(_explain(error)) from None

    return guarded


def _drop_output() -> None:
    """Sends the rest of stdout nowhere: Python would complain again when it flushes it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _explain(error: Exception) -> int:
    if isinstance(error, VlmError):
        print_error(error)
        return USER_ERROR
    if isinstance(error, OSError) and error.errno in REFUSED:
        what = f"{error.filename} cannot be used" if error.filename else "the output cannot be written"
        print_error(f"{what}: {error.strerror}; choose another place or make room there.")
        if not error.filename:
            with contextlib.suppress(OSError, ValueError):  # stdout may have no file beneath
                _drop_output()
        return USER_ERROR
    if isinstance(error, MemoryError) or UNMAPPED in str(error):
        print_error(NO_MEMORY)
        return USER_ERROR
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    print_error(f"internal error, {reason}; `vlm --debug ...` shows where, please report it.")
    return INTERNAL_ERROR
