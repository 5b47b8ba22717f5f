"""--prompt-table FILE.npy --tasks 0,1: rows of p- and prompt-tuned models, which go before a request's text."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlm.artifacts.files import open_regular
from vlm.errors import InputError
from vlm.options import option
from vlm_app.cli.options.groups import Group

if TYPE_CHECKING:
    import numpy as np

    from vlm_app.text.sources import Item

BASE = -1  # the task of a request without rows


@dataclass(frozen=True)
class TableOptions:
    """Tuned prompts, as the command line has them."""

    prompt_table: Path | None = option(
        None, "Tuned prompts, a .npy file of floats [tasks, rows, hidden] or [rows, hidden]."
    )
    tasks: str | None = option(
        None, "Whose rows go before the text: one number, or one for each: 0,1,0; -1: none, the base model."
    )


@dataclass(frozen=True)
class SoftPrompts:
    """Tables of tasks and the tasks of the requests."""

    tables: np.ndarray  # [tasks, rows, hidden]
    tasks: tuple[int, ...]

    @classmethod
    def read(cls, file: Path | None, tasks: str | None) -> SoftPrompts | None:
        """Reads a table; None where there is no file. Raises InputError, before a model is loaded, for what is no table
        or no task of it."""
        if file is None:
            if tasks is not None:
                raise InputError("--tasks says whose rows of a prompt table are used; add --prompt-table FILE.npy.")
            return None
        tables = _read(file)
        count = len(tables)
        if tasks is None and count > 1:
            raise InputError(f"--prompt-table {file} holds {count} tasks; say which one with --tasks 0 (or 0,1,…).")
        numbers = _numbers(tasks or "0")
        if extra := [n for n in numbers if not BASE <= n < count]:
            raise InputError(
                f"--tasks names {extra[0]}; {file} holds {count}, from 0 to {count - 1}, and {BASE} is the base model."
            )
        return cls(tables, numbers)

    def per_request(self, count: int) -> list[np.ndarray | None]:
        """Returns each request's rows [rows, hidden], None for the base model. Raises InputError unless there is a task
        for each, or one for all."""
        if len(self.tasks) not in (1, count):
            raise InputError(f"--tasks names {len(self.tasks)} tasks for {count} requests; give one for each, or one.")
        tasks = self.tasks * count if len(self.tasks) == 1 else self.tasks
        return [None if n == BASE else self.tables[n] for n in tasks]


def prepend(soft_prompts: SoftPrompts | None, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the inputs with their rows."""
    if soft_prompts is None:
        return inputs
    rows = soft_prompts.per_request(len(inputs))
    pairs = zip(inputs, rows, strict=True)
    return [fields if table is None else {**fields, "prompt_table": table} for fields, table in pairs]


def attach_prompt_tables(soft_prompts: SoftPrompts | None, items: Iterable[Item]) -> Iterable[Item]:
    """Returns the items with their rows; they are read at once where each has a task of its own. Raises InputError
    unless there is one for each, or one for all."""
    if soft_prompts is None:
        return items
    if len(soft_prompts.tasks) == 1:
        [table] = soft_prompts.per_request(1)
        return (_with(item, table) for item in items)
    items = list(items)
    return [_with(item, table) for item, table in zip(items, soft_prompts.per_request(len(items)), strict=True)]


def _with(item: Item, table: np.ndarray | None) -> Item:
    return item if table is None else replace(item, fields={**item.fields, "prompt_table": table})


def _numbers(tasks: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in tasks.split(","))
    except ValueError:
        raise InputError(f"--tasks is {tasks!r}; give numbers such as 0 or 0,1,0.") from None


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


def _from_options(values: dict[str, Any]) -> SoftPrompts | None:
    return SoftPrompts.read(values.get("prompt_table"), values.get("tasks"))


SOFT_PROMPTS = Group.from_fields(None, _from_options, TableOptions)
