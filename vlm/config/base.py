"""What all configurations have in common: they are frozen, read and write dictionaries, and check their values."""

from __future__ import annotations

import dataclasses
import functools
import os
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from vlm.errors import ConfigError, listed, shown
from vlm.options import errors_of, to_tuples
from vlm.ranges import OfType


@dataclass(frozen=True)
class Config:
    """Base of the frozen dataclasses: reads and writes plain dictionaries, rejects unknown keys."""

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Reads what `to_dict` wrote, or a JSON file of it. Raises ConfigError that names every unknown key, and every
        value of another type than its field's."""
        types = _types(cls)
        if unknown := sorted(set(values) - types.keys()):
            raise ConfigError(f"{cls.__name__} does not know {listed(unknown)}; it takes {listed(sorted(types), 40)}.")
        values = {name: _as_field(value, types[name].hint) for name, value in values.items()}
        if errors := _type_errors(cls, values, ";"):
            raise ConfigError(f"{cls.__name__} cannot have these values: {listed(errors.values())}.")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @property
    def depth_in_all(self) -> int:
        """Layers of a network, those of the networks within it included."""
        values = [getattr(self, field.name) for field in dataclasses.fields(self)]
        own = [getattr(self, name, 0) for name in ("num_layers", "depth", "linears")]
        nested = [value.depth_in_all for value in values if isinstance(value, Config)]
        return sum(own) + sum(getattr(self, "depths", ())) + sum(nested)


def _as_field(value: Any, hint: Any) -> Any:
    """Returns a file's value as its field has it: a mapping as the dataclass that it describes, lists as tuples."""
    for kind in typing.get_args(hint) or (hint,) if isinstance(value, dict) else ():
        if isinstance(kind, type) and issubclass(kind, Config):
            return kind.from_dict(value)
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            return kind(**{name: to_tuples(part) for name, part in value.items()})
    return to_tuples(value)


@functools.cache
def _types(config: type[Config]) -> Mapping[str, OfType]:
    """Returns the types of a configuration's fields."""
    hints = typing.get_type_hints(config)
    return {field.name: OfType(hints[field.name]) for field in dataclasses.fields(config)}


def _type_errors(config: type[Config], values: Mapping[str, Any], separator: str) -> dict[str, str]:
    """Returns what is wrong with values of another type than their fields', by the fields' names."""
    types = _types(config)
    return {
        name: f"{name} is {shown(value)}{separator} {error}"
        for name, value in values.items()
        if (error := types[name].error(value))
    }


def errors_in(config: Config) -> dict[str, str]:
    """Returns what is wrong with values, by their fields' names: with those of another type, or else beyond limits."""
    values = {name: _plain(getattr(config, name)) for name in _types(type(config))}
    return _type_errors(type(config), values, ",") or dict(errors_of(config, ","))


def _plain(value: Any) -> Any:
    """Returns a path as a string, and lists as tuples."""
    return os.fspath(value) if isinstance(value, os.PathLike) else to_tuples(value)


def raise_errors(errors: Mapping[str, str], *others: str) -> None:
    """Raises ConfigError for what is wrong with fields, if anything is. `others`: which the sentences may name, too."""
    if errors:
        raise ConfigError("; ".join(errors.values()) + ".", settings=(*errors, *others))
