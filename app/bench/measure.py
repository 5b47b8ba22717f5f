"""`latency` and `throughput`: the same model, inputs and definitions for us, for Hugging Face and for the floor."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vlm.artifacts.native.engine_dir import EngineDir
from vlm.artifacts.progress import Progress
from vlm.errors import LimitError, VlmError
from vlm.registry.catalogs import configs_of
from vlm_app.bench.config import BenchConfig
from vlm_app.bench.systems.baselines import Baseline
from vlm_app.bench.systems.inputs import FULL_LENGTH
from vlm_app.bench.systems.random_adapters import with_adapters
from vlm_app.bench.systems.session import HF, Results, Session, has_floor, prepare_session, split
from vlm_app.bench.timing.clock import Turns, milliseconds, per_token, turns
from vlm_app.bench.timing.collectives import collectives
from vlm_app.bench.timing.floor import Floor
from vlm_app.bench.timing.kernels import kernels_of

if TYPE_CHECKING:
    from vlm.api.outputs import Output
    from vlm.api.pipeline import Pipeline

DISTINCT_IMAGES = 8  # kept in memory; more pages take turns


def latency(config: BenchConfig, progress: Progress | None = None) -> Results:
    """Measures one page at a time: encoder, first token, each further token."""
    return _run("latency", dataclasses.replace(config, batch_size=1, pages=1), _latency, progress)


def throughput(config: BenchConfig, progress: Progress | None = None) -> Results:
    """Measures many pages through a full batch: pages and tokens a second."""
    return _run("throughput", config, _throughput, progress)


def _run(
    kind: str,
    config: BenchConfig,
    measure: Callable[[Pipeline, list[Tensor], BenchConfig], Turns[Results]],
    progress: Progress | None,
) -> Results:
    with prepare_session(config, "image", progress) as session:
        config = session.config
        _check_limits(session.engine, config)
        images = random_images(session.engine, config.seed)
        speed = session.bandwidth()
        ours, theirs = session.compare(
            {HF: lambda folder: _baseline(folder, images, session)},
            lambda pipeline: measure(pipeline, images, config),
        )
        floors = {name: _floor(kind, _decode_floor(session, name, speed), ours[name], config) for name in ours}
    first, *others = ours
    for name in filter(has_floor, others):
        ours[name]["floor"] = floors[name]
    return session.head(kind) | {
        **split(ours),
        "hf": _as(kind, theirs[HF], config) if HF in theirs else None,
        "floor": floors[first],
    }


def _decode_floor(session: Session[BenchConfig], name: str, speed: float) -> Floor:
    config, vision = session.config, session.configs["visual"]
    rows = vision.rows_of(*vision.usual_size)  # of the images that are drawn
    return session.floor(name, speed, batch_size=config.batch_size, encoder_rows=rows, new_tokens=config.new_tokens)


def random_images(engine: EngineDir, seed: int) -> list[Tensor]:
    """Draws pixels [C, H, W] as the model takes them."""
    config = configs_of(engine).visual
    assert config is not None  # what is measured reads images
    generator = torch.Generator().manual_seed(seed)
    shape = (config.num_channels, *config.usual_size)
    return [torch.randn(shape, generator=generator) for _ in range(DISTINCT_IMAGES)]


def _check_limits(engine: EngineDir, config: BenchConfig) -> None:
    """Raises LimitError before minutes are spent; only an engine that was given can be too small in its batch."""
    limits = engine.limits
    if config.new_tokens + 1 > limits.max_seq_len:
        raise LimitError(
            f"--new-tokens is {config.new_tokens}; this model generates at most {limits.max_seq_len - 1} tokens a page."
        )
    if config.batch_size > limits.max_batch_size:
        raise LimitError(f"--batch-size is {config.batch_size}; the engine was built for {limits.max_batch_size}.")


def _baseline(folder: Path, images: list[Tensor], session: Session[BenchConfig]) -> Turns[Results]:
    config = session.config
    size = config.hf_batch_size or config.batch_size
    batch = torch.stack([images[i % len(images)] for i in range(size)])
    baseline = Baseline(folder, session.dtype, session.device)
    return (yield from baseline.measure(batch, min(config.hf_new_tokens, config.new_tokens), config.repeats))


def _latency(pipeline: Pipeline, images: list[Tensor], config: BenchConfig) -> Turns[Results]:
    encode: list[float] = []

    def first_token() -> None:
        _generate(pipeline, images[0], 1)
        encode.append(pipeline.timings["encode"])

    whole = lambda: _generate(pipeline, images[0], config.new_tokens)  # noqa: E731
    whole()  # warm-up
    first_token()
    encode.clear()
    first, all_tokens = yield from turns([first_token, whole], pipeline.device, config.repeats)
    result = {
        "batch_size": 1,
        "new_tokens": config.new_tokens,
        "encode_ms": milliseconds(encode),
        "first_token_ms": milliseconds(first),
        "ms_per_token": per_token(all_tokens, first, config.new_tokens),
        "collectives": collectives(pipeline, rows=1),
        "seconds": {"first_token": first, "whole": all_tokens},
    }
    if config.profile:
        result |= kernels_of(first_token, whole, config.new_tokens - 1, pipeline.device)
    return result


def _generate(pipeline: Pipeline, image: Tensor, new_tokens: int) -> None:
    [output] = pipeline.generate(with_adapters([{"pixel_values": image}], pipeline), **_fixed(new_tokens))
    assert len(output.token_ids) == new_tokens, output.finish_reason


def _throughput(pipeline: Pipeline, images: list[Tensor], config: BenchConfig) -> Turns[Results]:
    def read(pages: int, new_tokens: int) -> None:
        inputs = with_adapters([{"pixel_values": images[i % len(images)]} for i in range(pages)], pipeline)
        count = sum(_num_tokens(out) for _, out in pipeline.as_completed(inputs, **_fixed(new_tokens)))
        assert count == pages * new_tokens, count

    read(config.batch_size, min(config.new_tokens, 64))  # warm-up
    (times,) = yield from turns([lambda: read(config.pages, config.new_tokens)], pipeline.device, config.repeats)
    pages_per_s = config.pages / statistics.median(times)
    return {
        "batch_size": config.batch_size,
        "pages": config.pages,
        "new_tokens": config.new_tokens,
        "pages_per_s": pages_per_s,
        "tokens_per_s": pages_per_s * config.new_tokens,
        "collectives": collectives(pipeline, config.batch_size),
        "seconds": times,
        "timings": pipeline.timings,
    }


def _num_tokens(out: Output | VlmError) -> int:
    """Returns the length of a page's output. Raises what a page has failed with."""
    if isinstance(out, VlmError):
        raise out
    return len(out.token_ids)


def _fixed(new_tokens: int) -> dict[str, Any]:
    """Returns settings that give exactly so many tokens."""
    return FULL_LENGTH | {"max_new_tokens": new_tokens}


def _as(kind: str, hf: Results, config: BenchConfig) -> Results:
    """Returns what throughput says: a batch's whole time, its further tokens at the time measured for the first
    ones."""
    if kind == "latency":
        return hf
    seconds = (hf["first_token_ms"] + hf["ms_per_token"] * (config.new_tokens - 1)) / 1e3
    pages_per_s = hf["batch_size"] / seconds
    rates = {"pages_per_s": pages_per_s, "tokens_per_s": pages_per_s * config.new_tokens}
    return hf | rates | {"extrapolated": hf["new_tokens"] < config.new_tokens}


def _floor(kind: str, floor: Floor, ours: Results, config: BenchConfig) -> Results:
    """Returns the floor and the part of it that was reached (1: as fast as memory allows)."""
    values = floor.to_dict()
    if kind == "latency":
        return values | {"ms_per_token": floor.step_ms, "reached": floor.step_ms / ours["ms_per_token"]}
    pages_per_s = config.batch_size / (floor.step_ms / 1e3 * config.new_tokens)
    rates = {"pages_per_s": pages_per_s, "tokens_per_s": pages_per_s * config.new_tokens}
    return values | rates | {"reached": ours["pages_per_s"] / pages_per_s}
