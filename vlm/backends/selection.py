"""Which backend `auto` takes."""

from __future__ import annotations

from typing import NamedTuple

from vlm.backends.installed import backends
from vlm.config import VisionConfig
from vlm.errors import EngineError


class Picked(NamedTuple):
    """A backend and why it was taken, as one sentence says it."""

    name: str
    reason: str


def pick(device: str, dtype: str | None = None, vision: VisionConfig | None = None) -> Picked:
    """Returns what `--backend auto` means on a device ("cpu", "cuda"): of the backends that would run there in `dtype`,
    and read images as `vision` says, the one of the highest rank, with why those above it would not."""
    refusals = []
    for backend in sorted(backends(), key=lambda each: -each.rank):
        if (preference := backend.preference(device, dtype)) is None:
            continue
        if preference.takes and backend.encodes(vision):
            return Picked(backend.name, "; ".join(refusals) or preference.reason)
        refusals.append(f"{backend.name} takes images of one size alone" if preference.takes else preference.reason)
    raise EngineError(f"no installed backend runs on {device}: {'; '.join(refusals)}.")
