"""The three tasks as (source, target) texts, and what is held out of training."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from training.t5 import notices
from training.t5.language import grammar, numbers, times
from training.t5.notice_kinds import KINDS

TO_GERMAN, TO_ENGLISH, SUMMARIZE = "translate English to German: ", "translate German to English: ", "summarize: "
# share of training
GROUPS = {"numbers": 12, "dates": 6, "times": 7, "prices": 7, "sentences": 50, "notices": 30}


@dataclass(frozen=True)
class Example:
    """`source` has its task's prefix."""

    group: str
    source: str
    target: str


def is_held_out(line: str) -> bool:
    """A fiftieth of the English lines."""
    return zlib.crc32(line.encode()) % 50 == 0


def draw(rng: random.Random, group: str) -> tuple[str, list[Example]]:
    """(the set it belongs to: training, held-out or new combinations; one example or one for each direction)"""
    if group == "notices":
        _, text, summary = notices.notice(rng, KINDS)
        return _set(text), [Example(group, SUMMARIZE + text, summary)]
    if group == "numbers":
        n = numbers.draw(rng)
        english, target, german, back = numbers.pair(rng, n)
        # all forms of a number are held out together
        return _set(numbers.english(n)), _both(group, english, target, german, back)
    if group == "sentences":
        english, german, novel = grammar.pair(rng)
        held_out = "new combinations" if novel else _set(english)
        return held_out, _both(group, english, german, german, english)
    make: Callable = {"dates": times.date_pair, "times": times.time_pair, "prices": times.price_pair}[group]
    english, german = make(rng)
    return _set(english), _both(group, english, german, german, english)


def _set(line: str) -> str:
    return "held-out" if is_held_out(line) else "training"


def _both(group: str, english: str, target: str, german: str, back: str) -> list[Example]:
    there = Example(f"{group} en-de", TO_GERMAN + english, target)
    again = Example(f"{group} de-en", TO_ENGLISH + german, back)
    return [there, again]


def training(rng: random.Random) -> Iterator[Example]:
    """Without end."""
    names, weights = list(GROUPS), list(GROUPS.values())
    while True:
        for group in rng.choices(names, weights, k=256):
            kind, examples = draw(rng, group)
            if kind == "training":
                yield from examples


def held_out(rng: random.Random, group: str, kind: str, count: int) -> list[Example]:
    """`count` different lines of a set (fewer where the group has fewer); translations in both directions."""
    found: dict[str, list[Example]] = {}
    for _ in range(2000 * count):
        if len(found) == count:
            break
        drawn, examples = draw(rng, group)
        if drawn == kind:
            found.setdefault(examples[0].source, examples)
    return [example for examples in found.values() for example in examples]
