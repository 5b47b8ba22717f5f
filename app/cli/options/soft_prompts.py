"""--prompt-table FILE.npy --tasks 0,1: rows of p- and prompt-tuned models, which go before a request's text."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vlm.artifacts.files import open_regular
from vlm.errors import InputError
from vlm.options import option
from vlm_app.cli.options.per_input import BASE, PerInput, numbers_of

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class TableOptions:
    """Tuned prompts, as the command line has them."""

    prompt_table: Path | None = option(
        None, "Tuned prompts, a .npy file of floats [tasks, rows, hidden] or [rows, hidden]."
    )
    tasks: str | None = option(
        None, "Whose rows go before the text: one number, or one for each: 0,1,0; -1: none, the base model."
    )


def read_tables(file: Path | None, tasks: str | None) -> PerInput:
    """Reads the rows that go before each input's text; without a file none do. Raises InputError, before a model is
    loaded, for what is no table or no task of it."""
    if file is None:
        if tasks is not None:
            raise InputError("--tasks says whose rows of a prompt table are used; add --prompt-table FILE.npy.")
        return PerInput("prompt_table", (None,), "--tasks")
    tables = _read(file)
    count = len(tables)
    if tasks is None and count > 1:
        raise InputError(f"--prompt-table {file} holds {count} tasks; say which one with --tasks 0 (or 0,1,…).")
    numbers = numbers_of("--tasks", tasks or "0")
    if extra := [n for n in numbers if not BASE <= n < count]:
        raise InputError(
            f"--tasks names {extra[0]}; {file} holds {count}, from 0 to {count - 1}, and {BASE} is the base model."
        )
    return PerInput("prompt_table", tuple(None if n == BASE else tables[n] for n in numbers), "--tasks")


def _read(file: Path) -> np.ndarray:
    """Reads [tasks, rows, hidden]. Raises InputError for a file of anything else."""
    import numpy as np

    option = f"--prompt-table {file}"
    if not file.is_file():
        raise InputError(f"{option} {'is a folder' if file.is_dir() else 'does not exist'}; give a .npy file.")
    if not os.access(file, os.R_OK):
        raise InputError(f"{option} cannot be read: permission denied.")
    try:
        # not np.load, which takes archives and pickles for arrays as well
        with open_regular(file) as data:
            array = np.lib.format.read_array(data, allow_pickle=False)
    except Exception:  # a header may end in any of them
        raise InputError(f"{option} is no .npy file of numbers; write it with numpy.save.") from None
    if not np.issubdtype(array.dtype, np.floating) or array.ndim not in (2, 3) or not array.size:
        raise InputError(
            f"{option} is {array.dtype} of shape {list(array.shape)};"
            " give floats [tasks, rows, hidden] or [rows, hidden]."
        )
    return (array if array.ndim == 3 else array[None]).astype(np.float32)
