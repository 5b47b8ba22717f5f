"""The values that an option takes, and what is said of others."""

from __future__ import annotations

import functools
import typing
from dataclasses import dataclass
from math import inf, isfinite
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Protocol

from vlm.errors import listed


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


@dataclass(frozen=True)
class OfType:
    """Values of a type, as a field of a configuration is annotated; whole numbers are numbers, too. Of types that are
    neither numbers, truth values, strings nor tuples of them anything but None is taken."""

    hint: Any

    def error(self, value: Any) -> str | None:
        """Returns what is allowed where a value is of another type, or a number that is none. What tuples hold has
        checks of its own: a bias may be infinite."""
        is_number = float not in _kinds(self.hint) or not isinstance(value, Real) or _is_finite(value)
        return None if is_number and _is_of_type(value, self.hint) else f"it must be {self}"

    def __str__(self) -> str:
        return " or ".join(map(_words, _kinds(self.hint)))


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
_CLASSES = {int: Integral, float: Real, str: str}


@functools.cache
def _kinds(hint: Any) -> list[Any]:
    """Returns the types that a hint names, None aside."""
    return [kind for kind in (typing.get_args(hint) if isinstance(hint, UnionType) else [hint]) if kind is not NoneType]


def _is_of_type(value: Any, hint: Any) -> bool:
    if value is None:
        return isinstance(hint, UnionType) and NoneType in typing.get_args(hint)
    return any(_is_of_kind(value, kind) for kind in _kinds(hint))


def _is_of_kind(value: Any, kind: Any) -> bool:
    if kind is bool:  # files say 0 and 1, too
        return isinstance(value, Integral) and value in (0, 1)
    if (of := _CLASSES.get(kind)) is not None:
        return isinstance(value, of) and not isinstance(value, bool)
    if typing.get_origin(kind) is not tuple:
        return True
    parts = typing.get_args(kind)
    if not isinstance(value, tuple):
        return False
    parts = parts[:1] * len(value) if parts[-1] is Ellipsis else parts
    return len(parts) == len(value) and all(map(_is_of_type, value, parts))


def _is_finite(value: Any) -> bool:
    try:
        return isfinite(value)
    except OverflowError:  # of a whole number that no float holds
        return False


def _words(kind: Any) -> str:
    """Returns what a value of a type is called."""
    if typing.get_origin(kind) is tuple:
        return f"a list of {_plural(kind)}"
    return _WORDS.get(kind) or "an object"


def _plural(kind: Any) -> str:
    """Returns what a tuple's values are called, which is a pair where there are two of them."""
    first, last = typing.get_args(kind)
    if last is not Ellipsis:
        return "two numbers"
    return _WORDS[first].removeprefix("a ") + "s" if first in _WORDS else "lists"


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
