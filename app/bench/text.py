"""`vlm bench text`: texts of random tokens through an encoder-decoder, every combination of batch, beams and lengths;
texts of a batch may have lengths of their own.

For us and for Hugging Face: a batch's whole time, its first token's, and the time of a further step,
(T(n tokens) - T(1 token)) / (n - 1). Tokens a second count what is returned: one output a text, beams or not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from vlm.artifacts.progress import Progress
from vlm.backends.devices import first_device
from vlm_app.bench.config import TextBenchConfig, Workload
from vlm_app.bench.rows import floor_of, join_systems, measure_rows, neutral, times
from vlm_app.bench.systems.inputs import FULL_LENGTH, random_texts
from vlm_app.bench.systems.random_adapters import with_adapters
from vlm_app.bench.systems.rival import CTranslate2, check_rival
from vlm_app.bench.systems.session import HF, RIVAL, Results, Session, prepare_session
from vlm_app.bench.timing.clock import Turns
from vlm_app.bench.timing.collectives import collectives

if TYPE_CHECKING:
    from vlm.api.pipeline import Pipeline


def text(config: TextBenchConfig, progress: Progress | None = None) -> Results:
    """Measures all rows, Hugging Face's first; each model is loaded once. Raises InputError where CTranslate2 is to
    take part and cannot."""
    if config.ctranslate2 is not None:
        check_rival(first_device(config.runtime))
    with prepare_session(config, "text", progress, config.limits) as session:
        speed = session.bandwidth()
        ours, theirs = session.compare(_others(session), lambda pipeline: _measure(pipeline, session))
        rows = join_systems(config, ours, theirs.get(HF), functools.partial(_floor, session, speed))
    for row, rival in zip(rows, theirs.get(RIVAL, ()), strict=False):
        row["ctranslate2"] = rival
    return session.head("text") | {"floor": {"bandwidth": speed}, "rows": rows}


def _floor(session: Session[TextBenchConfig], speed: float, name: str, row: Workload, ours: Results) -> Results:
    texts = random_texts(session, row)
    mean = round(sum(map(len, texts)) / len(texts))
    return floor_of(session, name, row, encoder_rows=mean, speed=speed, ours=ours)


def _others(session: Session[TextBenchConfig]) -> dict[str, Callable[[Path], Turns[list[Results]]]]:
    """Returns what measures the other programs, by their names."""
    others = {HF: lambda folder: _baseline(folder, session)} if session.config.hf else {}
    return others | ({RIVAL: lambda folder: _rival(folder, session)} if session.config.ctranslate2 else {})


def _measure(pipeline: Pipeline, session: Session[TextBenchConfig]) -> Turns[list[Results]]:
    settings = neutral(session.engine)

    def measure_row(_: int, row: Workload) -> Turns[Results]:
        def generate(texts: list[list[int]], new_tokens: int) -> None:
            inputs = with_adapters([{"encoder_input_ids": ids} for ids in texts], pipeline)
            options = {"max_new_tokens": new_tokens, "num_beams": row.num_beams, **row.settings}
            outputs = pipeline.generate(inputs, **settings | FULL_LENGTH | options)
            assert all(len(out.token_ids) == new_tokens for out in outputs)

        texts = random_texts(session, row)
        results = yield from times(
            lambda: texts, generate, row, steps=row.lengths[1], repeats=session.config.repeats, session=session
        )
        return results | {"collectives": collectives(pipeline, row.batch_size * row.num_beams)}

    return (yield from measure_rows(session, "vlm", measure_row))


def _baseline(folder: Path, session: Session[TextBenchConfig]) -> Turns[list[Results]]:
    """Measures Hugging Face, with fewer texts or tokens where so configured."""
    from vlm_app.bench.systems.baselines import TextBaseline

    config = session.config
    baseline = TextBaseline(folder, session.dtype, session.device)

    def measure_row(_: int, row: Workload) -> Turns[Results]:
        texts = random_texts(session, row)[: config.hf_batch_size]
        generate = lambda texts, tokens: baseline.generate(texts, tokens, row.num_beams, row.settings)  # noqa: E731
        results = yield from times(
            lambda: texts, generate, row, steps=config.hf_steps(row), repeats=config.hf_repeats, session=session
        )
        return baseline.description | results

    return (yield from measure_rows(session, HF, measure_row))


def _rival(folder: Path, session: Session[TextBenchConfig]) -> Turns[list[Results]]:
    """Measures CTranslate2."""
    config = session.config
    assert config.ctranslate2 is not None  # else it is not measured
    rival = CTranslate2(folder, config.ctranslate2, config.threads or torch.get_num_threads())

    def measure_row(_: int, row: Workload) -> Turns[Results]:
        texts = random_texts(session, row)
        generate = lambda texts, tokens: rival.generate(texts, tokens, row.num_beams)  # noqa: E731
        results = yield from times(
            lambda: texts, generate, row, steps=row.lengths[1], repeats=config.repeats, session=session
        )
        return rival.description | results

    return (yield from measure_rows(session, RIVAL, measure_row))
