"""`vlm bench text`: texts of random tokens through an encoder-decoder, every combination of batch, beams and lengths.

For us and for Hugging Face: a batch's whole time, its first token's, and the time of a further step,
(T(n tokens) - T(1 token)) / (n - 1). Tokens a second count what is returned: one output a text, beams or not.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from app.bench.clock import milliseconds, per_token, repeated
from app.bench.config import TextBenchConfig, Workload
from app.bench.floor import decode_floor
from app.bench.session import Results, Session, prepared
from app.bench.subject import Progress
from vlm.generation import model_defaults
from vlm.registry import model_spec
from vlm.runtime.request import SamplingParams

if TYPE_CHECKING:
    from vlm.pipeline import Pipeline

FIRST_ORDINARY_ID = 10  # ids below are special ones in the families here,
SPECIAL_AT_END = 128  # … and those at the end of a large vocabulary: sentinels, languages, padding
LARGE = 1024


def text(config: TextBenchConfig, progress: Progress | None = None) -> Results:
    """All rows, Hugging Face's first; each model is loaded once."""
    with prepared(config, "text", progress, config.limits) as session:
        speed = session.bandwidth()
        ours, hf = session.compare(
            lambda folder: _baseline(folder, session), lambda pipeline: _measured(pipeline, session)
        )
        rows = [
            row.to_dict() | {"vlm": mine, "hf": theirs, "floor": _floor(session, row, speed, mine)}
            for row, mine, theirs in zip(config.rows, ours, hf or [None] * len(ours), strict=True)
        ]
    return session.head("text") | {"floor": {"bandwidth": speed}, "rows": rows}


def random_texts(session: Session[TextBenchConfig], row: Workload) -> torch.Tensor:
    """[batch, tokens in], the same for both systems"""
    spec = model_spec(session.engine.roles["decoder"])
    size = spec.config.from_dict(session.engine.config("decoder")).vocab_size
    past = size - SPECIAL_AT_END if size >= LARGE else size
    generator = torch.Generator().manual_seed(session.config.seed)
    return torch.randint(min(FIRST_ORDINARY_ID, past - 1), past, (row.batch_size, row.lengths[0]), generator=generator)


def _rows(session: Session[TextBenchConfig], system: str) -> Iterator[tuple[Workload, torch.Tensor]]:
    """Each row and its texts, with progress."""
    rows = session.config.rows
    for done, row in enumerate(rows):
        session.say(f"Measuring {system}", done, len(rows))
        yield row, random_texts(session, row)


def _measured(pipeline: Pipeline, session: Session[TextBenchConfig]) -> list[Results]:
    # the model's own settings off: both systems do the same work
    neutral = {name: getattr(SamplingParams(), name) for name in model_defaults(session.engine.generation)}

    def generate(texts: torch.Tensor, new_tokens: int, num_beams: int) -> None:
        inputs = [{"encoder_input_ids": ids} for ids in texts.tolist()]
        options = {"max_new_tokens": new_tokens, "ignore_eos": True, "num_beams": num_beams}
        found = pipeline.generate(inputs, **neutral | options)
        assert all(len(out.token_ids) == new_tokens for out in found)

    repeats = session.config.repeats
    return [_times(generate, row, texts, row.lengths[1], repeats, session) for row, texts in _rows(session, "vlm")]


def _baseline(folder: Path, session: Session[TextBenchConfig]) -> list[Results]:
    """Fewer texts or tokens where so configured."""
    from app.bench.huggingface import TextBaseline

    config = session.config
    baseline = TextBaseline(folder, config.dtype, session.device)
    found = []
    for row, texts in _rows(session, "Hugging Face"):
        steps = min(config.hf_new_tokens or row.lengths[1], row.lengths[1])
        texts = texts[: config.hf_batch_size].to(session.device)
        found.append(baseline.description | _times(baseline.generate, row, texts, steps, config.hf_repeats, session))
    return found


def _times(
    generate: Callable[[torch.Tensor, int, int], Any],
    row: Workload,
    texts: torch.Tensor,
    steps: int,
    repeats: int,
    session: Session[TextBenchConfig],
) -> Results:
    """Of `steps` tokens a text; those that are wanted beyond are taken to cost as much each."""
    call = lambda tokens: generate(texts, tokens, row.num_beams)  # noqa: E731
    call(steps)  # warm-up, in full: kernels for longer contexts are chosen or loaded when first met
    first = repeated(lambda: call(1), session.device, repeats)
    whole = repeated(lambda: call(steps), session.device, repeats)
    wanted, step = row.lengths[1], per_token(whole, first, steps)
    seconds = statistics.median(whole) + step / 1e3 * (wanted - steps)
    return {
        "batch_size": len(texts),
        "first_token_ms": milliseconds(first),
        "step_ms": step,
        "seconds": seconds,
        "tokens_per_s": len(texts) * wanted / seconds,
        "measured_tokens": steps,
        "extrapolated": steps < wanted,
        "runs": {"first_token": first, "whole": whole},
    }


def _floor(session: Session[TextBenchConfig], row: Workload, speed: float, ours: Results) -> Results:
    given, made = row.lengths
    floor = decode_floor(session.engine, batch_size=row.batch_size, encoder_rows=given, new_tokens=made,
                         bandwidth=speed, num_beams=row.num_beams)  # fmt: skip
    rate = row.batch_size / floor.step_ms * 1e3
    return floor.to_dict() | {"tokens_per_s": rate, "reached": ours["tokens_per_s"] / rate}
