"""Shows what the host and the GPU are at until prompts have their first tokens: a tool for who looks for where one
waits for the other.

    python benchmarks/first_token.py MODEL                one prompt of 32 tokens; MODEL as vlm.load takes it
    python benchmarks/first_token.py MODEL --prompts 32
    python benchmarks/first_token.py llava-1.5-7b --random FOLDER    random weights, which FOLDER keeps
    python benchmarks/first_token.py t5-small --random FOLDER --prompts 128 --tokens 64 --new-tokens 64
    python benchmarks/first_token.py mini-llava --cpu     does it run?

A prompt has an image ahead of its tokens where the model takes images; of a model with an encoder of texts the tokens
are the text.

What it prints are medians in milliseconds from the call on: when a stage began first and ended last, and what all its
calls took. Stages of the device (GPU) are between events; how long it had nothing to do between an image's pass and its
prompt's is what lies between `encode` and `prefill`. Figures of models come from `vlm bench`.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import vlm
from vlm.api.ahead.images_ahead import ImagesAhead
from vlm.api.ahead.texts_ahead import TextsAhead
from vlm.api.outputs import OutputReader
from vlm.build.builder import build_engine
from vlm.build.random_checkpoint import random_checkpoint
from vlm.config import BuildConfig, RuntimeConfig
from vlm.engine.live_sequences import LiveSequences
from vlm.engine.llm_engine import LLMEngine
from vlm.engine.scheduler import Scheduler
from vlm.executor.decode_burst import DecodeBurst
from vlm.executor.encoding.encoders import Encoders
from vlm.executor.executor import Executor
from vlm.executor.graph_pool import GraphPool
from vlm.executor.paged.runner import PagedRunner
from vlm.executor.state.batch_state import BatchState
from vlm.processing.inputs.request_builder import RequestBuilder
from vlm.requests import image

STAGES = (
    (RequestBuilder, "build"), (image, "pixel_digest"), (ImagesAhead, "take"), (ImagesAhead, "encode"),
    (TextsAhead, "take"), (Encoders, "encode_ahead"), (LLMEngine, "add"), (LLMEngine, "step"),
    (Scheduler, "schedule"), (Executor, "admit"), (BatchState, "place"), (PagedRunner, "encode_texts"),
    (BatchState, "admit"), (Executor, "prefill"), (Executor, "launch"), (DecodeBurst, "collect"),
    (LiveSequences, "apply"), (OutputReader, "merged"),
)  # fmt: skip
Spans = dict[str, list[tuple[float, float]]]  # (begin, end) in seconds, by stage


class Clock:
    """Notes when stages begin and end, on the host and on the device."""

    def __init__(self, device: torch.device):
        self._cuda = device.type == "cuda"
        for owner, name in STAGES:
            self._note(owner, name, f"{owner.__name__}.{name}")
        if self._cuda:
            self._note_graphs()

    def begin(self) -> None:
        self._spans: Spans = defaultdict(list)
        self._graphs: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        if self._cuda:
            torch.cuda.synchronize()
            self._zero = _event()
        self._began = time.perf_counter()

    def spans(self, timer: Any) -> Spans:
        """Returns the stages since it began; `timer`: the engine's, of the device."""
        if self._cuda:
            torch.cuda.synchronize()
            for name, begin, end in [*timer._pending, *self._graphs]:
                at = tuple(self._zero.elapsed_time(event) / 1e3 for event in (begin, end))
                self._spans[f"GPU {name}"].append((at[0], at[1]))
        return self._spans

    def _note(self, owner: Any, name: str, stage: str) -> None:
        call: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(call)
        def noted(*args: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            try:
                return call(*args, **options)
            finally:
                self._spans[stage].append((begin - self._began, time.perf_counter() - self._began))

        setattr(owner, name, noted)

    def _note_graphs(self) -> None:
        run = GraphPool.run

        def noted(pool: GraphPool, key: tuple, *inputs: torch.Tensor) -> Any:
            begin = _event()
            output = run(pool, key, *inputs)
            self._graphs.append((f"graph {str(key[0]).strip('()')}", begin, _event()))
            return output

        setattr(GraphPool, "run", noted)  # noqa: B010 - no subclass of it


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--prompts", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=32, help="of a prompt (default 32)")
    parser.add_argument("--new-tokens", type=int, default=1, help="with more the table is of all of them (default 1)")
    parser.add_argument("--settings", type=json.loads, default={}, metavar="JSON", help="of generation")
    parser.add_argument("--random", type=Path, metavar="FOLDER")
    parser.add_argument("--dtype", default="float16", help="of random weights (default float16)")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    model, size = args.model, max(32, args.prompts)
    if args.random is not None:
        model = random_engine(args.model, args.random, size, args.dtype)
    pipeline = vlm.load(model, runtime=RuntimeConfig("cpu" if args.cpu else "cuda"))
    clock, generator = Clock(pipeline.device), torch.Generator().manual_seed(0)
    stages: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for run in range(args.runs + 5):
        inputs = [prompt_of(pipeline, args.tokens, generator) for _ in range(args.prompts)]
        clock.begin()
        began = time.perf_counter()
        pipeline.generate(inputs, max_new_tokens=args.new_tokens, ignore_eos=True, **args.settings)
        total = time.perf_counter() - began
        spans = clock.spans(pipeline.llm.encoders.timer) | {"all": [(0.0, total)]}
        for stage, times in spans.items() if run >= 5 else ():
            row = min(b for b, _ in times), max(e for _, e in times), sum(e - b for b, e in times)
            stages[stage].append(row)
    print(f"{'stage':32}{'begin':>9}{'end':>9}{'in all':>9}")
    for stage, row in sorted(((s, [*map(statistics.median, zip(*r, strict=True))]) for s, r in stages.items()),
                             key=lambda each: each[1][0]):  # fmt: skip
        print(f"{stage:32}" + "".join(f"{1e3 * seconds:9.2f}" for seconds in row))


def random_engine(arch: str, folder: Path, batch_size: int, dtype: str) -> Path:
    """Returns an engine of random weights, which is made where there is none."""
    engine = folder / f"{arch}-{dtype}-{batch_size}"
    if not engine.exists():
        checkpoint = random_checkpoint(arch, folder / f"{arch}-checkpoint", dtype=dtype)
        build_engine(checkpoint, engine, BuildConfig(dtype=dtype, max_batch_size=batch_size, max_seq_len=1024))
    return engine


def prompt_of(pipeline: vlm.Pipeline, count: int, generator: torch.Generator) -> dict[str, Any]:
    """Draws so many tokens, which follow an image's rows where the model takes images."""
    vision, vocab_size = pipeline.processor.vision, pipeline.config.vocab_size
    tokens = torch.randint(3, vocab_size, (count,), generator=generator).tolist()
    if vision is None:
        has_encoder = pipeline.llm.encoders.encoder is not None
        return {"encoder_input_ids" if has_encoder else "decoder_prompt_token_ids": tokens}
    height, width = vision.usual_size
    return {
        "pixel_values": torch.randn(vision.num_channels, height, width, generator=generator),
        "decoder_prompt_token_ids": [*range(vocab_size, vocab_size + vision.rows_of(height, width)), *tokens],
    }


if __name__ == "__main__":
    main()
