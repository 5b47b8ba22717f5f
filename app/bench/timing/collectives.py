"""What the ranks of an engine tell each other in a decode step, beside the time of the whole step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vlm.api.pipeline import Pipeline


def collectives(pipeline: Pipeline, rows: int) -> dict[str, Any] | None:
    """Returns the calls of one rank in a step of so many rows, the bytes of their tensors, and the milliseconds that
    they take by themselves; None of an engine that one process runs."""
    found = pipeline.collective_time(rows)
    return None if found is None else {"calls": found.calls, "bytes": found.bytes, "ms": found.seconds * 1e3}
