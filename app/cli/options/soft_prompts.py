"""--prompt-table FILE.npy --tasks 0,1: rows of p- and prompt-tuned models, which go before a request's text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vlm.artifacts.prompt_tables import PromptTables, TunedPrompt
from vlm.errors import InputError
from vlm.options import option
from vlm_app.cli.options.per_input import BASE, PerInput


@dataclass(frozen=True)
class TableOptions:
    """Tuned prompts, as the command line has them."""

    prompt_table: Path | None = option(
        None, "Tuned prompts: a .npy file of floats [tasks, rows, hidden] or [rows, hidden], or a folder that vlm"
        " convert wrote.",
    )  # fmt: skip
    tasks: str | None = option(
        None, "Whose rows go before the text, by number or name: one, or one for each: 0,1,0; -1: none, the base model."
    )


def read_tables(path: Path | None, tasks: str | None) -> PerInput:
    """Reads the rows that go before each input's text; without a file none do. Raises InputError, before a model is
    loaded, for what is no table or no task of it."""
    if path is None:
        if tasks is not None:
            raise InputError("--tasks says whose rows of a prompt table are used; add --prompt-table FILE.npy.")
        return PerInput("prompt_table", (None,), "--tasks")
    tables = PromptTables.open(path, f"--prompt-table {path}")
    if tasks is None and len(tables) > 1:
        first = next(iter(tables.names), "0")
        raise InputError(
            f"--prompt-table {path} holds {len(tables)} tasks; say which one with --tasks {first} (or one for each, of"
            f" {tables.known})."
        )
    found = tuple(_of_task(tables, task.strip()) for task in (tasks or "0").split(","))
    return PerInput("prompt_table", found, "--tasks")


def _of_task(tables: PromptTables, task: str) -> TunedPrompt | None:
    if task == str(BASE):
        return None
    if (found := tables.find(task)) is None:
        raise InputError(f"--tasks names {task}; {tables.path} holds {tables.known}, and {BASE} is the base model.")
    return found
