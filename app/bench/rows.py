"""What `text` and `prompt` share: a row is a batch of one size and length, measured for both systems and the floor."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from app.bench.clock import milliseconds, per_token, repeated_anew
from app.bench.config import RowsConfig, Workload
from app.bench.floor import decode_floor
from app.bench.session import Results, Session
from vlm.generation import model_defaults
from vlm.runtime.request import SamplingParams

if TYPE_CHECKING:
    from vlm.compile.engine_dir import EngineDir

T = TypeVar("T")

FIRST_ORDINARY_ID = 10  # ids below are special ones in the families here,
SPECIAL_AT_END = 128  # … and those at the end of a large vocabulary: sentinels, languages, padding, images
LARGE = 1024


def random_ids(vocab_size: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Of ordinary tokens."""
    past = vocab_size - (SPECIAL_AT_END if vocab_size >= LARGE else vocab_size // 16)
    return torch.randint(min(FIRST_ORDINARY_ID, past - 1), past, shape, generator=generator)


def neutral(engine: EngineDir) -> dict[str, Any]:
    """The model's own settings off: both systems do the same work."""
    return {name: getattr(SamplingParams(), name) for name in model_defaults(engine.generation)}


def each_row(session: Session[Any], system: str) -> Iterator[tuple[int, Workload]]:
    """Each row and its number, with progress."""
    rows: list[Workload] = session.config.rows
    for number, row in enumerate(rows):
        session.say(f"Measuring {system}", number, len(rows))
        yield number, row


def times(
    draw: Callable[[], T],
    generate: Callable[[T, int], Any],
    row: Workload,
    steps: int,
    repeats: int,
    session: Session[Any],
) -> Results:
    """Of `steps` tokens for a batch that is drawn for each run; those that are wanted beyond are taken to cost as much
    each."""
    first_token, all_steps = (lambda batch: generate(batch, 1)), (lambda batch: generate(batch, steps))
    batch = draw()
    all_steps(batch)  # warm-up, in full: kernels for longer contexts are chosen or loaded when first met
    first_token(draw())
    first = repeated_anew(draw, first_token, session.device, repeats)
    whole = repeated_anew(draw, all_steps, session.device, repeats)
    wanted, step = row.lengths[1], per_token(whole, first, steps)
    seconds = statistics.median(whole) + step / 1e3 * (wanted - steps)
    return {
        "batch_size": len(batch),
        "first_token_ms": milliseconds(first),
        "step_ms": step,
        "seconds": seconds,
        "tokens_per_s": len(batch) * wanted / seconds,
        "measured_tokens": steps,
        "extrapolated": steps < wanted,
        "runs": {"first_token": first, "whole": whole},
    }


def joined(
    config: RowsConfig,
    ours: list[Results],
    hf: list[Results] | None,
    floor: Callable[[Workload, Results], Results],
) -> list[Results]:
    """What a result says of each row."""
    return [
        row.to_dict() | {"vlm": mine, "hf": theirs, "floor": floor(row, mine)}
        for row, mine, theirs in zip(config.rows, ours, hf or [None] * len(ours), strict=True)
    ]


def floor_of(session: Session[Any], row: Workload, encoder_rows: int, speed: float, ours: Results) -> Results:
    """The floor of a row, and the part of it that was reached (1: as fast as memory allows)."""
    floor = decode_floor(session.engine, batch_size=row.batch_size, encoder_rows=encoder_rows,
                         new_tokens=row.lengths[1], bandwidth=speed, num_beams=row.num_beams)  # fmt: skip
    rate = row.batch_size / floor.step_ms * 1e3
    return floor.to_dict() | {"tokens_per_s": rate, "reached": ours["tokens_per_s"] / rate}
