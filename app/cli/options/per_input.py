"""What options give to inputs beside their texts: one value for all of them, or one for each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vlm.errors import InputError

if TYPE_CHECKING:
    from vlm_app.text.sources import Item

BASE = -1  # the number of an input that goes without


@dataclass(frozen=True)
class PerInput:
    """Values of one field of the pipeline's inputs."""

    field: str
    values: tuple[Any, ...]  # None: an input goes without
    option: str  # what says which input has which

    def each(self, count: int) -> list[dict[str, Any]]:
        """Returns the field of each of so many inputs. Raises InputError unless there is a value for each, or one for
        all."""
        if len(self.values) not in (1, count):
            raise InputError(
                f"{self.option} names {len(self.values)} tasks for {count} requests; give one for each, or one."
            )
        values = self.values * count if len(self.values) == 1 else self.values
        return [{} if value is None else {self.field: value} for value in values]

    def on_inputs(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the inputs with their values."""
        return [{**own, **fields} for fields, own in zip(inputs, self.each(len(inputs)), strict=True)]

    def on_items(self, items: Iterable[Item]) -> Iterable[Item]:
        """Returns the items with their values; they are read at once where each has one of its own."""
        if len(self.values) == 1:
            [own] = self.each(1)
            return (_with(item, own) for item in items) if own else items
        items = list(items)
        return [_with(item, own) for item, own in zip(items, self.each(len(items)), strict=True)]


def _with(item: Item, own: dict[str, Any]) -> Item:
    return replace(item, fields={**own, **item.fields})


def numbers_of(option: str, text: str) -> tuple[int, ...]:
    """Reads `0,1,-1`. Raises InputError for anything else."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise InputError(f"{option} is {text!r}; give numbers such as 0 or 0,1,0.") from None
