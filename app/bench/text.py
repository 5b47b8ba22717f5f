"""`vlm bench text`: texts of random tokens through an encoder-decoder, every combination of batch, beams and lengths.

For us and for Hugging Face: a batch's whole time, its first token's, and the time of a further step,
(T(n tokens) - T(1 token)) / (n - 1). Tokens a second count what is returned: one output a text, beams or not.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from app.bench.clock import milliseconds, repeated
from app.bench.config import TextBenchConfig, Workload
from app.bench.environment import environment
from app.bench.floor import bandwidth, decoder_bytes
from app.bench.measure import default_dtype, opened, release
from app.bench.subject import Progress, prepare
from vlm.compile.engine_dir import EngineDir
from vlm.registry import model_spec
from vlm.runtime.loader import resolve_device

if TYPE_CHECKING:
    from vlm.pipeline import Pipeline

Results = dict[str, Any]
FIRST_ORDINARY_ID = 10  # ids below are special ones in the families here


def text(config: TextBenchConfig, progress: Progress | None = None) -> Results:
    """All rows, Hugging Face's first; each model is loaded once."""
    device = resolve_device(config.device)
    config = replace(config, device=str(device), dtype=config.dtype or default_dtype(device))
    say = progress or (lambda *_: None)
    with tempfile.TemporaryDirectory(prefix="vlm-bench-") as scratch:
        subject = prepare(config, config.dtype, Path(scratch), "text", progress, config.limits)
        engine = EngineDir.open(subject.engine)
        say("Measuring the memory bandwidth", 0, 0)
        speed = bandwidth(device)
        hf: list[Results | None] = [None] * len(config.rows)
        if config.hf and subject.folder is not None:
            say("Measuring Hugging Face", 0, 0)
            hf = _baseline(subject.folder, config, device)
        release(device)
        say("Measuring vlm", 0, 0)
        with opened(subject.engine, device) as pipeline:
            ours = [_ours(pipeline, row, config) for row in config.rows]
        rows = [
            row.to_dict() | {"vlm": a, "hf": b, "floor": _floor(engine, row, speed, a)}
            for row, a, b in zip(config.rows, ours, hf, strict=True)
        ]
    head = {"kind": "text", "subject": config.subject, "config": config.to_dict(), "environment": environment(device)}
    return head | {"floor": {"bandwidth": speed}, "rows": rows}


def random_texts(vocab_size: int, row: Workload, seed: int) -> torch.Tensor:
    """[batch, tokens in]"""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(FIRST_ORDINARY_ID, vocab_size, (row.batch_size, row.lengths[0]), generator=generator)


def _ours(pipeline: Pipeline, row: Workload, config: TextBenchConfig) -> Results:
    texts = random_texts(pipeline.config.vocab_size, row, config.seed).tolist()
    inputs = [{"encoder_input_ids": ids} for ids in texts]

    def generate(new_tokens: int) -> None:
        options = {"max_new_tokens": new_tokens, "ignore_eos": True, "min_new_tokens": 0, "num_beams": row.num_beams}
        found = pipeline.generate(inputs, no_repeat_ngram_size=0, early_stopping=False, **options)
        assert all(len(out.token_ids) == new_tokens for out in found)

    generate(row.lengths[1])  # warm-up
    return _times(generate, row, row.lengths[1], config.repeats, pipeline.device)


def _baseline(folder: Path, config: TextBenchConfig, device: torch.device) -> list[Results]:
    from app.bench.huggingface import TextBaseline

    baseline = TextBaseline(folder, config.dtype, device)
    found = []
    for row in config.rows:
        ids = random_texts(baseline.model.config.vocab_size, row, config.seed).to(device)
        steps = min(config.hf_new_tokens or row.lengths[1], row.lengths[1])
        generate = lambda n, ids=ids, row=row: baseline.generate(ids, n, row.num_beams)  # noqa: E731
        generate(min(4, steps))  # warm-up
        found.append(baseline.description | _times(generate, row, steps, config.hf_repeats, device))
    return found


def _times(generate: Callable[[int], None], row: Workload, steps: int, repeats: int, device: torch.device) -> Results:
    first = repeated(lambda: generate(1), device, repeats)
    whole = repeated(lambda: generate(steps), device, repeats)
    step = (milliseconds(whole) - milliseconds(first)) / (steps - 1)
    wanted = row.lengths[1]
    seconds = statistics.median(whole) + step / 1e3 * (wanted - steps)
    return {
        "first_token_ms": milliseconds(first),
        "step_ms": step,
        "seconds": seconds,
        "tokens_per_s": row.batch_size * wanted / seconds,
        "measured_tokens": steps,
        "extrapolated": steps < wanted,
        "runs": {"first_token": first, "whole": whole},
    }


def _floor(engine: EngineDir, row: Workload, speed: float, ours: Results) -> Results:
    """Of a decode step at the mean length: decoder weights, cross K/V once a text, self K/V of every beam. Without the
    encoder's pass: nothing is as fast as this."""
    config = model_spec(engine.roles["decoder"]).config.from_dict(engine.config("decoder"))
    token = 2 * config.num_layers * config.num_kv_heads * config.head_dim * getattr(torch, engine.build.dtype).itemsize
    given, made = row.lengths
    kv = row.batch_size * (given + row.num_beams * made // 2) * token
    step = (decoder_bytes(engine) + kv) / speed * 1e3
    rate = row.batch_size / step * 1e3
    return {"step_ms": step, "tokens_per_s": rate, "reached": ours["tokens_per_s"] / rate}
