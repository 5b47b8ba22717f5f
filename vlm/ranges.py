"""The values that an option takes, and what is said of others."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
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
