"""--prompt-table FILE.npy --tasks 0 1: rows of p- and prompt-tuned models, which go before a request's text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlm.artifacts.prompt_tables import PromptTables, TunedPrompt
from vlm.errors import InputError
from vlm.options import option
from vlm_app.cli.options.per_input import BASE, PerInput

if TYPE_CHECKING:
    from vlm_app.text.sources import Item

FIELD = "prompt_table"  # of an input


@dataclass(frozen=True)
class TableOptions:
    """Tuned prompts, as the command line has them."""

    prompt_table: Path | None = option(
        None, "Tuned prompts: a .npy file of floats [tasks, rows, hidden] or [rows, hidden], or a folder that vlm"
        " convert or PEFT wrote.",
    )  # fmt: skip
    tasks: tuple[str, ...] = option(
        (), "Whose rows go before the text, by number or name: one, or one for each: 0 1 -1 or 0,1,-1, squad,boolq (or"
        " repeat it); -1: none, the base model.", metavar="TASK...",
    )  # fmt: skip


@dataclass(frozen=True)
class SoftPrompts(PerInput):
    """The rows of inputs' tasks. A line of JSON may name its own; without values it has to."""

    tables: PromptTables | None = None

    def on_items(self, items: Iterable[Item]) -> Iterable[Item]:
        """Returns the items with the rows of their tasks; one whose task is unknown has an error."""
        return super().on_items(map(self._named, items))

    def _named(self, item: Item) -> Item:
        """Puts the rows of a line's own task in its place. Without a table it is the model's own, or none."""
        if "task" not in item.fields or self.tables is None:
            return item
        fields = {name: value for name, value in item.fields.items() if name != "task"}
        try:
            return replace(item, fields=fields | {FIELD: _of_task(self.tables, item.fields["task"], "its task is")})
        except InputError as error:
            return replace(item, fields=fields, error=str(error))


def read_tables(path: Path | None, tasks: tuple[str, ...] | None, *, lines_name_tasks: bool) -> SoftPrompts:
    """Reads the rows that go before each input's text; without a file none do. `lines_name_tasks`: where there are
    several tasks, and none is said, inputs may say. Raises InputError, before a model is loaded, for what is no table
    or no task of it."""
    if path is None:
        if tasks is not None:
            raise InputError("--tasks says whose rows of a prompt table are used; add --prompt-table FILE.npy.")
        return SoftPrompts(FIELD, (None,), "--tasks", "task")
    tables = PromptTables.open(path, f"--prompt-table {path}")
    if tasks is None and len(tables) > 1:
        if not lines_name_tasks:
            raise InputError(_undecided(tables))
        return SoftPrompts(FIELD, (), "--tasks", "task", _undecided(tables), tables)
    names = ["0"] if tasks is None else [name.strip() for name in ",".join(tasks).split(",")]
    if "" in names:
        raise InputError(f"--tasks is {' '.join(tasks or ())!r}; give numbers or names such as 0 or 0,1,0.")
    found = tuple(_of_task(tables, name, "--tasks names") for name in names)
    return SoftPrompts(FIELD, found, "--tasks", "task", tables=tables)


def _undecided(tables: PromptTables) -> str:
    first = next(iter(tables.names), "0")
    return (
        f"--prompt-table {tables.path} holds {len(tables)} tasks; say which one with --tasks {first} (or one for each,"
        f" of {tables.known})."
    )


def _of_task(tables: PromptTables, task: Any, words: str) -> TunedPrompt | None:
    """Returns the rows of a task, None of the base model. Raises InputError, which begins with `words`, for another."""
    if str(task) == str(BASE):
        return None
    if (found := tables.find(task)) is None:
        raise InputError(f"{words} {str(task)[:60]}; {tables.path} holds {tables.known}, and {BASE} is the base model.")
    return found
