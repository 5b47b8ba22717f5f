"""What inputs have beside their texts: rows of tuned prompts, and adapters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from vlm.errors import InputError, listed
from vlm.options import option
from vlm.requests.adapters import adapter_id
from vlm_app.cli.options.groups import Group
from vlm_app.cli.options.per_input import BASE, PerInput, numbers_of
from vlm_app.cli.options.soft_prompts import SoftPrompts, TableOptions, read_tables

if TYPE_CHECKING:
    from vlm.api.pipeline import Pipeline
    from vlm_app.text.sources import Item


@dataclass(frozen=True)
class AdapterOptions:
    """The adapters of inputs, as the command line has them."""

    lora_task_uids: tuple[str, ...] = option(
        (), "Which adapter an input has, by its place among --lora or --lora-dir: one number, or one for each: 0 1 -1"
        " or 0,1,-1 (or repeat it); -1: none, the base model.", metavar="NUMBER...",
        default="a lone adapter; of several, what an input of a .jsonl file names as \"lora\"",
    )  # fmt: skip


@dataclass(frozen=True)
class Extras:
    """Fields that options give to inputs."""

    adapters: PerInput
    tables: SoftPrompts | None = None
    in_lines: bool = False  # do lines of JSON name their own?

    @property
    def fields(self) -> tuple[PerInput, ...]:
        return (self.adapters,) if self.tables is None else (self.tables, self.adapters)

    def among(self, names: Sequence[str]) -> Extras:
        """Returns them where adapters of these names are loaded: of several, --lora-task-uids or a line of JSON says
        which one an input has. Raises InputError where neither may, and for a number that none has."""
        loaded = {name: number for number, name in enumerate(names)}
        for number in self.adapters.values:
            if number is not None:
                adapter_id(number, loaded)
        if len(names) < 2 or self.adapters.values != (None,):
            return self
        numbers = listed((f"{number} is {name}" for number, name in enumerate(names)), 4)
        undecided = (
            f"there are {len(names)} adapters; say which one with --lora-task-uids 0 (or one for each: {numbers},"
            f" {BASE} is the base model)."
        )
        if not self.in_lines:
            raise InputError(undecided)
        return replace(self, adapters=replace(self.adapters, values=(), undecided=undecided))

    def check_fit(self, pipeline: Pipeline) -> None:
        """Raises InputError for tuned prompts of a model of another width; one that takes none says so itself."""
        tables = None if self.tables is None else self.tables.tables
        if tables is not None and (pipeline.capabilities.takes_prompt or pipeline.capabilities.takes_text):
            tables.check_width(pipeline.processor.prompt_width)

    def alone(self) -> dict[str, Any]:
        """Returns those of a single input."""
        [own] = self.on_inputs([{}])
        return own

    def on_inputs(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the inputs with them. Raises InputError unless there is one for each, or one for all."""
        for field in self.fields:
            inputs = field.on_inputs(inputs)
        return inputs

    def on_items(self, items: Iterable[Item]) -> Iterable[Item]:
        """Returns the items with them; they are read at once where each has one of its own. Raises InputError unless
        there is one for each, or one for all."""
        for field in self.fields:
            items = field.on_items(items)
        return items


def _extras(values: dict[str, Any], lines_name_tasks: bool = False) -> Extras:
    tables = read_tables(values.get("prompt_table"), values.get("tasks"), lines_name_tasks=lines_name_tasks)
    return replace(_adapters(values), tables=tables, in_lines=lines_name_tasks)


def _adapters(values: dict[str, Any]) -> Extras:
    uids = values.get("lora_task_uids")
    numbers = (None,) if uids is None else numbers_of("--lora-task-uids", ",".join(uids))
    return Extras(PerInput("lora", numbers, "--lora-task-uids", "lora"))


EXTRAS = Group.from_fields(None, _extras, TableOptions, AdapterOptions)
LINES_EXTRAS = Group.from_fields(None, partial(_extras, lines_name_tasks=True), TableOptions, AdapterOptions)
ADAPTERS = Group.from_fields(None, _adapters, AdapterOptions)
