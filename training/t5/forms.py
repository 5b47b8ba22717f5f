"""The task of the packaged adapter: a notice becomes a form, its facts by name, that programs can read.

The notices are those of training.t5.notices; the answer is JSON whose values are copied from the text.
"""

from __future__ import annotations

import dataclasses
import json
import random
import zlib
from collections.abc import Iterator

from training.t5 import notices, tasks
from training.t5.notice_kinds import KINDS
from training.t5.notices import Kind

GROUP = "forms"


def _template(name: str, kind: Kind) -> str:
    """Returns the form of a kind, a slot where a fact is to come, for str.format."""
    form = json.dumps({"notice": name} | {slot: f"<{slot}>" for slot in kind.slots})
    escaped = form.replace("{", "{{").replace("}", "}}")
    for slot in kind.slots:
        escaped = escaped.replace(f"<{slot}>", f"{{{slot}}}")
    return escaped


FORMS = {name: dataclasses.replace(kind, summary=_template(name, kind)) for name, kind in KINDS.items()}


def draw(rng: random.Random) -> tuple[bool, tasks.Example]:
    """Returns whether a notice is held out, a fiftieth of them, and the notice with its form."""
    _, text, form = notices.notice(rng, FORMS)
    return zlib.crc32(text.encode()) % 50 == 0, tasks.Example(GROUP, tasks.SUMMARIZE + text, form)


def training(rng: random.Random) -> Iterator[tasks.Example]:
    """Yields examples without end."""
    while True:
        is_held_out, example = draw(rng)
        if not is_held_out:
            yield example


def held_out(rng: random.Random, count: int) -> list[tasks.Example]:
    """Returns so many examples that training never shows."""
    found: list[tasks.Example] = []
    while len(found) < count:
        is_held_out, example = draw(rng)
        if is_held_out:
            found.append(example)
    return found
