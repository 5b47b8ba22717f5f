"""`vlm bench prompt`: prompts of random images and tokens, every combination of batch and lengths.

For us and for Hugging Face: the time to a batch's first token, with its images' encoding, the time of a further token,
(T(n tokens) - T(1 token)) / (n - 1), and the whole time. Every prompt of every run is drawn again, so that no cache of
features or of prompts' beginnings is of use. Pixel values are ready; of pictures of a given size (`image_size`) each
system makes them, within its time.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vlm.artifacts.progress import Progress
from vlm_app.bench.config import PromptBenchConfig, Workload
from vlm_app.bench.rows import floor_of, join_systems, measure_rows, neutral, times
from vlm_app.bench.systems.image_sizes import with_pixel_size
from vlm_app.bench.systems.inputs import FULL_LENGTH, Prompts, as_inputs, random_prompts
from vlm_app.bench.systems.random_adapters import with_adapters
from vlm_app.bench.systems.session import HF, Results, Session, prepare_session
from vlm_app.bench.timing.clock import Turns, milliseconds, repeated_with_fresh_inputs
from vlm_app.bench.timing.collectives import collectives

if TYPE_CHECKING:
    from vlm.api.outputs import Output
    from vlm.api.pipeline import Pipeline
    from vlm.processing.media.image_processor import ImageProcessor

CHECKED = 32  # tokens a prompt that are compared
Measurement = tuple[list[Results], Tensor]  # of each row; tokens of the first one's prompts


def prompt(config: PromptBenchConfig, progress: Progress | None = None) -> Results:
    """Measures all rows, Hugging Face's first; each model is loaded once."""
    config = with_pixel_size(config)
    with prepare_session(config, "prompt", progress, config.limits) as session:
        images, image_rows = config.num_images(session.configs), config.image_rows(session.configs)
        speed = session.bandwidth()
        ours, theirs = session.compare(
            {HF: lambda folder: _baseline(folder, session)}, lambda pipeline: _measure(pipeline, session)
        )
        hf = theirs.get(HF)
        by_backend = {name: results for name, (results, _) in ours.items()}
        rows = join_systems(config, by_backend, hf and hf[0], functools.partial(_floor, session, image_rows, speed))
    sizes = {"images": images, "image_rows": image_rows}
    check = None if hf is None else agreement(next(iter(ours.values()))[1], hf[1])
    return session.head("prompt") | {"floor": {"bandwidth": speed}, "check": check, "rows": [sizes | r for r in rows]}


def agreement(ours: Tensor, theirs: Tensor) -> Results:
    """Returns of how many tokens of both [batch, n] which part is the same at its place; `theirs` may be of fewer."""
    ours = ours[: len(theirs)]
    return {"tokens": ours.numel(), "agreement": float((ours == theirs).float().mean())}


def _measure(pipeline: Pipeline, session: Session[PromptBenchConfig]) -> Turns[Measurement]:
    settings, configs, config = neutral(session.engine), session.configs, session.config
    encode: list[float] = []

    def generate(inputs: list[dict[str, Any]], new_tokens: int, **options: Any) -> list[Output]:
        inputs = with_adapters(inputs, pipeline)
        outputs = pipeline.generate(inputs, **settings | FULL_LENGTH | options, max_new_tokens=new_tokens)
        assert all(len(out.token_ids) == new_tokens for out in outputs)
        if new_tokens == 1:
            encode.append(pipeline.timings["encode"])
        return outputs

    def measure_row(number: int, row: Workload) -> Turns[Results]:
        draw_prompts = random_prompts(session, row, number)
        draw = lambda: as_inputs(draw_prompts(), configs)  # noqa: E731
        run = functools.partial(generate, **row.settings)
        results = yield from times(draw, run, row, steps=row.lengths[1], repeats=config.repeats, session=session)
        results |= {"collectives": collectives(pipeline, row.batch_size)}
        return _row_results(row, results, encode[-config.repeats :] if config.num_images(configs) else [])

    rows = yield from measure_rows(session, "vlm", measure_row)
    inputs, count = _checked(session)
    # the end is out of the question for Hugging Face
    outputs = generate(as_inputs(inputs, configs), count, ignore_eos=False, min_new_tokens=count)
    return rows, torch.tensor([out.token_ids for out in outputs])


def _baseline(folder: Path, session: Session[PromptBenchConfig]) -> Turns[Measurement]:
    """Measures Hugging Face, with fewer prompts or tokens where so configured."""
    from vlm_app.bench.systems.baselines import PromptBaseline

    config, configs = session.config, session.configs
    processor = None if config.image_size is None else _image_processor(session)
    baseline = PromptBaseline(folder, session.dtype, session.device, config.image_rows(configs), processor)

    def measure_row(number: int, row: Workload) -> Turns[Results]:
        draw_prompts = random_prompts(session, row, number)
        draw = lambda: draw_prompts().first(config.hf_batch_size)  # noqa: E731
        run = functools.partial(baseline.generate, settings=row.settings)
        results = yield from times(
            draw, run, row, steps=config.hf_steps(row), repeats=config.hf_repeats, session=session
        )
        encode = []
        if config.num_images(configs):
            ready = lambda: baseline.processed(draw())  # noqa: E731
            encode = repeated_with_fresh_inputs(ready, baseline.encode, session.device, config.hf_repeats)
        return baseline.description | _row_results(row, results, encode)

    rows = yield from measure_rows(session, HF, measure_row)
    prompts, count = _checked(session)
    return rows, baseline.generate(prompts.first(config.hf_batch_size), count).cpu()


def _checked(session: Session[PromptBenchConfig]) -> tuple[Prompts, int]:
    """Prompts of the first row that no run had before, and how many tokens are compared."""
    rows = session.config.rows
    return random_prompts(session, rows[0], len(rows))(), min(CHECKED, rows[0].lengths[1])


def _image_processor(session: Session[PromptBenchConfig]) -> ImageProcessor:
    """Returns what transformers' class of the model does with pictures, as the engine runs it."""
    from vlm.processing.processor import processor_source

    source = processor_source(session.engine)
    assert source is not None  # it takes images
    return source.load()


def _row_results(row: Workload, results: Results, encode: list[float]) -> Results:
    """Names a row's times; `encode`: seconds of its images alone."""
    step, rate = results.pop("step_ms"), results["tokens_per_s"] / row.lengths[1]
    images = {"requests_per_s": rate} if encode else {}
    return {"encode_ms": milliseconds(encode) if encode else None, "ms_per_token": step} | results | images


def _floor(
    session: Session[PromptBenchConfig], image_rows: int, speed: float, name: str, row: Workload, ours: Results
) -> Results:
    floor = floor_of(session, name, row, encoder_rows=image_rows + row.lengths[0], speed=speed, ours=ours)
    rate = floor["tokens_per_s"] / row.lengths[1]
    return floor | {"step_reached": floor["step_ms"] / ours["ms_per_token"], "requests_per_s": rate}
