"""Which names the regular expressions of a foreign file match. An expression can take longer than anybody waits, and
nothing ends it within a process: those that repeat or choose run in one of their own, which is this file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence

SECONDS = 2  # of a processor, for all names
MEMORY = 1 << 29  # bytes
PATIENCE = 60  # seconds, on a machine that is busy
CAN_TAKE_LONG = re.compile(r"[*+?{|(\[]")


def first_matches(patterns: Sequence[str], names: Iterable[str]) -> dict[str, int]:
    """Returns for each name that a pattern matches as a whole the place of the first one. Raises ValueError and
    re.error for what is no pattern, TimeoutError for patterns that take too long."""
    if not any(map(CAN_TAKE_LONG.search, patterns)):
        return _first_matches(patterns, names)
    task = json.dumps([SECONDS, MEMORY, patterns, [*names]])
    try:
        process = subprocess.run(
            [sys.executable, "-I", "-S", __file__], input=task, capture_output=True, text=True, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    if process.returncode:
        raise TimeoutError
    found = json.loads(process.stdout)
    if isinstance(found, str):
        raise ValueError(found)
    return found


def _first_matches(patterns: Sequence[str], names: Iterable[str]) -> dict[str, int]:
    compiled = [re.compile(pattern) for pattern in patterns]
    places = {name: next((i for i, each in enumerate(compiled) if each.fullmatch(name)), None) for name in names}
    return {name: place for name, place in places.items() if place is not None}


def _run_within_budget() -> None:
    """Reads a task from stdin and writes what is found, or what is wrong with a pattern; ends with a signal or an error
    where that takes too much."""
    import resource  # which not all systems have

    seconds, memory, patterns, names = json.load(sys.stdin)
    limits = {resource.RLIMIT_CPU: seconds, resource.RLIMIT_DATA: memory, resource.RLIMIT_CORE: 0}
    for kind, limit in limits.items():
        resource.setrlimit(kind, (limit, limit))
    try:
        found = _first_matches(patterns, names)
    except (re.error, OverflowError) as error:
        found = str(error)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    _run_within_budget()
