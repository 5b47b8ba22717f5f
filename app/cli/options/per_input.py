"""What options give to inputs beside their texts: one value for all of them, or one for each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from vlm.errors import InputError, counted

if TYPE_CHECKING:
    from vlm_app.text.sources import Item

BASE = -1  # the number of an input that goes without


@dataclass(frozen=True)
class PerInput:
    """Values of one field of the pipeline's inputs."""

    field: str
    values: tuple[Any, ...]  # None: an input goes without; without values each has to name its own
    option: str  # what says which input has which
    key: str  # what a line of JSON calls it
    undecided: str = ""  # the error without values

    def each(self, count: int) -> list[dict[str, Any]]:
        """Returns the field of each of so many inputs. Raises InputError unless there is a value for each, or one for
        all."""
        if not self.values:
            raise InputError(self.undecided)
        if len(self.values) not in (1, count):
            named, inputs = counted(len(self.values), "task"), counted(count, "request")
            raise InputError(f"{self.option} names {named} for {inputs}; give one for each, or one.")
        values = self.values * count if len(self.values) == 1 else self.values
        return [{} if value is None else {self.field: value} for value in values]

    def on_inputs(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the inputs with their values."""
        return [{**own, **fields} for fields, own in zip(inputs, self.each(len(inputs)), strict=True)]

    def on_items(self, items: Iterable[Item]) -> Iterable[Item]:
        """Returns the items with their values; they are read at once where each has one of its own. Without values one
        that names none has an error. Raises InputError where that is the first: the others may be of a file that names
        none."""
        if not self.values:
            items = iter(items)
            first = next(items, None)
            if first is not None and self._lacks(first):
                raise InputError(self.undecided)
            return map(self._checked, chain(() if first is None else (first,), items))
        if len(self.values) == 1:
            [own] = self.each(1)
            return (_with(item, own) for item in items) if own else items
        items = list(items)
        return [_with(item, own) for item, own in zip(items, self.each(len(items)), strict=True)]

    def _lacks(self, item: Item) -> bool:
        return item.error is None and not item.is_empty and self.field not in item.fields

    def _checked(self, item: Item) -> Item:
        error = f'it names no "{self.key}", and {self.option} says none for all'
        return replace(item, error=error) if self._lacks(item) else item


def _with(item: Item, own: dict[str, Any]) -> Item:
    return replace(item, fields={**own, **item.fields})


def numbers_of(option: str, text: str) -> tuple[int, ...]:
    """Reads `0,1,-1`. Raises InputError for anything else."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise InputError(f"{option} is {text!r}; give numbers such as 0 or 0,1,0.") from None
