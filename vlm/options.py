"""What a field of a configuration is to people: the command line, the servers' requests and the docs follow from it."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Protocol

from vlm.errors import InputError, listed

KEY = "option"  # in a field's metadata


class Allowed(Protocol):
    """Which values an option takes."""

    def __str__(self) -> str: ...

    def error(self, value: Any) -> str | None:
        """Returns what is allowed where a value is not."""
        ...


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`; an end that is open is not one of them."""

    low: float = -inf
    high: float = inf
    low_open: bool = False
    high_open: bool = False
    words: str = ""  # what a value must be, in place of the end that it lies beyond

    def error(self, value: Any) -> str | None:
        """Returns what is allowed where a number does not lie within; NaN never does."""
        above = self.low < value if self.low_open else self.low <= value
        below = value < self.high if self.high_open else value <= self.high
        if above and below:
            return None
        return self.words or (f"it must be at most {self.high}" if above else f"it must be at least {self.low}")

    def __str__(self) -> str:
        low = f"{'(' if self.low_open or self.low == -inf else '['}{_number(self.low)}"
        return f"{low}, {_number(self.high)}{')' if self.high_open or self.high == inf else ']'}"


@dataclass(frozen=True)
class Choice:
    """A few values."""

    values: tuple[Any, ...]
    words: str

    def error(self, value: Any) -> str | None:
        """Returns what is allowed where a value is none of them."""
        return None if value in self.values else self.words

    def __str__(self) -> str:
        return ", ".join(str(value).lower() for value in self.values)


def _number(value: float) -> str:
    """Returns a number of an interval; large ones as the power of 2 that they are."""
    if isinstance(value, int) and value > 2**20 and value.bit_count() == 1:
        return f"2^{value.bit_length() - 1}"
    return {inf: "∞", -inf: "-∞"}.get(value, f"{value:g}")


def between(low: float, high: float, note: str = "") -> Range:
    """Returns the numbers of an interval with both ends."""
    return Range(low, high, words=f"it must lie in [{low:g}, {high:g}]{note and f', {note}'}")


def share() -> Range:
    """Returns the part of a whole, of which none at all is not one."""
    return Range(0, 1, low_open=True, words="it must lie in (0, 1]")


def at_least(low: int, words: str = "") -> Range:
    """Returns the numbers from `low` on."""
    return Range(low, words=words)


def positive(words: str) -> Range:
    """Returns the finite numbers above 0."""
    return Range(0, low_open=True, high_open=True, words=words)


def count(bits: int) -> Range:
    """Returns the numbers from 0 on that so many bits hold."""
    return Range(0, 2**bits, high_open=True, words=f"it must lie in [0, 2^{bits})")


def one_of(*values: str) -> Choice:
    """Returns names of which one is to be given."""
    return Choice(values, f"allowed are {listed(values)}")


@dataclass(frozen=True)
class Offer:
    """How the requests of a server's protocol offer an option."""

    name: str | None = None  # where it is not called after the field
    allowed: Range | None = None  # where the protocol takes other numbers than the field
    read: Callable[[Any], Any] | None = None  # what a request holds -> the value
    completions: str | None = None  # what /v1/completions calls it, where /v1/chat/completions has another name


@dataclass(frozen=True)
class Option:
    """One option: its help, and what the field's own name, type and default do not say."""

    help: str
    flags: tuple[str, ...] = ()  # of the command line, where it is not called after the field
    cli: bool = True  # is it one of the command line?
    default: str | None = None  # in words
    read: Callable[[Any], Any] | None = None  # what the command line gets -> the value; None: by the field's type
    written: type = str  # with `read`: what the command line gets
    env: str | None = None  # a variable that stands for the flag
    allowed: Allowed | None = None
    check: Callable[[Any], None] | None = None  # raises InputError for what `allowed` cannot say
    convert: Callable[[Any], Any] | None = None  # the forms that callers give -> the field's; None: lists to tuples
    section: str | None = None  # of docs/options.md
    openai: Offer | None = None  # None: not offered there
    kserve: Offer | None = None
    model_key: str | None = None  # the key of generation_config.json that sets it
    drawn: bool = False  # does that key count for draws alone?


def option(
    value: Any = dataclasses.MISSING, /, help: str = "", *, factory: Any = dataclasses.MISSING, **more: Any
) -> Any:
    """Returns a dataclass field with this default value that is an option; `more` goes to Option."""
    return dataclasses.field(default=value, default_factory=factory, metadata={KEY: Option(help, **more)})


def same_option(config: type, name: str, **changes: Any) -> Any:
    """Returns a dataclass field that is the same option as another's, with the same default value, but for what
    changes."""
    [field] = [field for field in dataclasses.fields(config) if field.name == name]
    own = dataclasses.replace(field.metadata[KEY], **{n: v for n, v in changes.items() if n != "value"})
    return dataclasses.field(default=changes.get("value", field.default), metadata={KEY: own})


@functools.cache
def options_of(config: type) -> Mapping[str, Option]:
    """Returns the options of a dataclass by its fields' names."""
    found = {field.name: field.metadata[KEY] for field in dataclasses.fields(config) if KEY in field.metadata}
    return MappingProxyType(found)


def defaults_of(config: type) -> dict[str, Any]:
    """Returns the default values of a dataclass's options by their fields' names; those without one are left out."""
    found = {}
    for field in dataclasses.fields(config):
        if field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory()
        elif field.default is not dataclasses.MISSING:
            found[field.name] = field.default
    return {name: value for name, value in found.items() if name in options_of(config)}


def without_none(hint: Any) -> Any:
    """Returns a field's type, None aside. TypeError where several are left."""
    kinds = typing.get_args(hint) if isinstance(hint, UnionType) else (hint,)
    left = [kind for kind in kinds if kind is not NoneType]
    if len(left) != 1:
        raise TypeError(f"an option of type {hint} needs a function that reads it")
    return left[0]


def flag_of(config: type, name: str) -> str:
    """Returns what the command line calls a field."""
    own = options_of(config).get(name)
    return own.flags[0] if own and own.flags else default_flag(name)


def default_flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def errors_of(config: Any, separator: str = ";", *, flags: bool = False) -> Iterator[str]:
    """Yields what is wrong with each value of a dataclass that its option does not take, and what is allowed; None is
    taken by every option. `flags`: options are called as on the command line."""
    for name, allowed in _limited(type(config)):
        value = getattr(config, name)
        if value is not None and (wanted := allowed.error(value)):
            called = flag_of(type(config), name) if flags else name
            yield f"{called} is {repr(value) if isinstance(value, str) else value}{separator} {wanted}"


def check_limits(config: Any, *, flags: bool = False) -> None:
    """Raises InputError for the first value of a dataclass that its option does not take."""
    for error in errors_of(config, flags=flags):
        raise InputError(f"{error}.")


def check_each(config: Any) -> None:
    """Calls the checks of a dataclass's options. Raises InputError."""
    for name, check in _checked(type(config)):
        check(getattr(config, name))


@functools.cache
def _limited(config: type) -> tuple[tuple[str, Allowed], ...]:
    return tuple((name, own.allowed) for name, own in options_of(config).items() if own.allowed is not None)


@functools.cache
def _checked(config: type) -> tuple[tuple[str, Callable[[Any], None]], ...]:
    return tuple((name, own.check) for name, own in options_of(config).items() if own.check is not None)
