"""Options of which one flag stands before several values, as argparse has them: --lora-task-uids 0 1 -1."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping

# by what the help calls the values of such an option: what further ones look like
FURTHER = {
    "FOLDER...": re.compile(r"(?!-).*"),
    "NUMBER...": re.compile(r"-?\d+(,-?\d+)*"),
    "TASK...": re.compile(r"-?\d+(,-?\d+)*"),  # a name may be a text
    "NAME:MS...": re.compile(r"\w+:.*"),
}


def with_each_flag(arguments: Iterable[str], metavars: Mapping[str, str | None]) -> list[str]:
    """Returns the arguments with the flag before each of its values, as typer takes them; `metavars`: of all flags."""
    words, found = iter(arguments), []
    flag, further = "", None  # of which values may follow
    for word in words:
        if word == "--":
            return [*found, word, *words]
        if further is not None and further.fullmatch(word):
            found += [flag, word]
            continue
        flag, equals, _ = word.partition("=")
        further = FURTHER.get(metavars.get(flag) or "")
        found += [word, *itertools.islice(words, further is not None and not equals)]
    return found
