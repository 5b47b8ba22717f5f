"""What `text` and `prompt` share: a row is a batch of one size and length, measured for both systems and the floor."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sized
from typing import TYPE_CHECKING, Any, TypeVar

from vlm.requests.generation import model_defaults
from vlm.requests.sampling_params import SamplingParams
from vlm_app.bench.config import RowsConfig, Workload
from vlm_app.bench.systems.session import Results, Session, has_floor, split
from vlm_app.bench.timing.clock import Turns, milliseconds, per_token, repeated_with_fresh_inputs
from vlm_app.bench.timing.kernels import kernels_of

if TYPE_CHECKING:
    from vlm.artifacts.native.engine_dir import EngineDir

T = TypeVar("T")
B = TypeVar("B", bound=Sized)  # a batch


def neutral(engine: EngineDir) -> dict[str, Any]:
    """Returns what turns the model's own settings off: both systems do the same work."""
    return {name: getattr(SamplingParams(), name) for name in model_defaults(engine.generation)}


def measure_rows(session: Session[Any], system: str, measure: Callable[[int, Workload], Turns[T]]) -> Turns[list[T]]:
    """Measures every row, by its number, with progress."""
    results, rows = [], session.config.rows
    for number, row in enumerate(rows):
        session.say(f"Measuring {system}", number, len(rows))
        results.append((yield from measure(number, row)))
    return results


def times(
    draw: Callable[[], B],
    generate: Callable[[B, int], Any],
    row: Workload,
    *,
    steps: int,
    repeats: int,
    session: Session[Any],
) -> Turns[Results]:
    """Times `steps` tokens of a batch that is drawn for each run; those that are wanted beyond are taken to cost as
    much each."""
    first_token, all_steps = (lambda batch: generate(batch, 1)), (lambda batch: generate(batch, steps))
    batch = draw()
    all_steps(batch)  # warm-up, in full: kernels for longer contexts are chosen or loaded when first met
    first_token(draw())
    first, whole = [], []
    for _ in range(repeats):
        first += repeated_with_fresh_inputs(draw, first_token, session.device, 1)
        whole += repeated_with_fresh_inputs(draw, all_steps, session.device, 1)
        yield
    kernels = {}
    if session.config.profile:
        batches = iter((draw(), draw()))
        runs = (lambda: first_token(next(batches))), (lambda: all_steps(next(batches)))
        kernels = kernels_of(*runs, steps - 1, session.device)
    return _summary(first, whole, row, batch_size=len(batch), steps=steps) | kernels


def _summary(first: list[float], whole: list[float], row: Workload, *, batch_size: int, steps: int) -> Results:
    """Returns what the seconds of first tokens, and of `steps` tokens, come to."""
    new_tokens, step = row.lengths[1], per_token(whole, first, steps)
    seconds = statistics.median(whole) + step / 1e3 * (new_tokens - steps)
    return {
        "batch_size": batch_size,
        "first_token_ms": milliseconds(first),
        "step_ms": step,
        "seconds": seconds,
        "tokens_per_s": batch_size * new_tokens / seconds,
        "measured_tokens": steps,
        "extrapolated": steps < new_tokens,
        "runs": {"first_token": first, "whole": whole},
    }


def join_systems(
    config: RowsConfig,
    ours: dict[str, list[Results]],
    hf: list[Results] | None,
    floor: Callable[[str, Workload, Results], Results],
) -> list[Results]:
    """Returns what a result says of each row; `floor`: of a system of ours."""
    first, *_ = ours
    for name, results in ours.items():
        for row, result in zip(config.rows, results, strict=True) if has_floor(name) else ():
            result["floor"] = floor(name, row, result)
    by_row = [split(dict(zip(ours, row, strict=True))) for row in zip(*ours.values(), strict=True)]
    return [
        row.to_dict() | mine | {"hf": theirs, "floor": floor(first, row, mine["vlm"])}
        for row, mine, theirs in zip(config.rows, by_row, hf or [None] * len(by_row), strict=True)
    ]


def floor_of(
    session: Session[Any], name: str, row: Workload, *, encoder_rows: int, speed: float, ours: Results
) -> Results:
    """Returns the floor of a row, and the part of it that was reached (1: as fast as memory allows)."""
    sizes = {"batch_size": row.batch_size, "encoder_rows": encoder_rows, "new_tokens": row.lengths[1]}
    floor = session.floor(name, speed, num_beams=row.num_beams, **sizes)
    rate = row.batch_size / floor.step_ms * 1e3
    return floor.to_dict() | {"tokens_per_s": rate, "reached": ours["tokens_per_s"] / rate}
