"""Loops, which end an output: Nougat's failure mode (Blecher et al., arXiv:2308.13418, §5.4).

The detector counts, for every period p, for how many tokens the sequence has been equal to itself p tokens before; a
run of at least `MIN_LOOP` tokens and `LOOP_REPEATS` periods ends the sequence.
"""

from __future__ import annotations

from collections.abc import Iterator

MAX_PERIOD = 128  # tokens
MIN_LOOP = 96  # repeated tokens
LOOP_REPEATS = 4  # repetitions after the first occurrence


def loop_runs_of(tokens: list[int]) -> list[int]:
    """Returns the counters after a whole history, on the host: for a sequence taken up again after a preemption."""
    return [*_runs(tokens)]


def _runs(tokens: list[int]) -> Iterator[int]:
    """Yields the counter of each period, the shortest first: what loops in one loops in all of its multiples."""
    for period in range(1, MAX_PERIOD + 1):
        run = 0
        while run + period < len(tokens) and tokens[-1 - run] == tokens[-1 - run - period]:
            run += 1
        yield run


def loop_period(tokens: list[int]) -> int | None:
    """Returns the shortest period in which a looping history repeats itself at its end; None when it does not loop."""
    for period, run in enumerate(_runs(tokens), 1):
        if run >= max(MIN_LOOP, LOOP_REPEATS * period):
            return period
    return None


def without_loop(tokens: list[int], period: int) -> list[int]:
    """Returns the history up to the end of the loop's first turn."""
    end = len(tokens)
    while end > 2 * period and tokens[end - 1] == tokens[end - 1 - period]:
        end -= 1
    return tokens[:end]
