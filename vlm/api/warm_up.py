"""Before anybody waits: kernels are compiled and the usual graphs captured, by requests that are made up."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from vlm.api.pipeline import Pipeline
from vlm.engine.encoder_engine import EncoderEngine
from vlm.errors import InputError
from vlm.requests.request import Request

LENGTH = 32  # tokens of a made-up text
LENGTHS = {"max_new_tokens": 2, "ignore_eos": True}
WAYS = ({}, {"temperature": 1.0, "num_beams": 1})  # as the model has it, mostly greedy; and sampled
PENALIZED = {**WAYS[1], "repetition_penalty": 1.1}  # for its kernels: those who ask for it are of too many kinds


def warm_up(pipeline: Pipeline, progress: Callable[[str, int, int], None] | None = None) -> None:
    """Decodes two tokens in every size of batch that has graphs of its own, as the model has it and sampled, and in the
    smallest with penalties.

    What the engine or the device is too small for is left out, and an encoder alone decodes nothing. The pipeline must
    be idle, and is so afterwards.
    """
    if isinstance(pipeline.llm, EncoderEngine) or not pipeline.engine.generates:
        return
    most = pipeline.capabilities.max_batch_size
    executor = pipeline.llm.executor
    sizes = sorted({executor.padded_batch_size(n) for n in range(1, most + 1)})
    numbers = itertools.count()
    # rows with adapters have other graphs, and steps without drafts
    ways = [*WAYS, *({**way, "lora": 0} for way in WAYS if pipeline.adapters)]
    if pipeline.llm.scheduler.config.num_speculative_tokens:
        ways += [{**way, "prompt_lookup_num_tokens": 0} for way in ways]
    # steps over long texts have other graphs where they attend to encoders' rows themselves
    has_others = executor.runner.keeps_hidden_rows and not pipeline.processor.vision
    lengths = [LENGTH, *([pipeline.llm.limits.max_encoder_input_len] if has_others else [])]
    for count, size in enumerate(sizes):
        if progress:
            progress("Warming up", count, len(sizes))
        for sampling, length in itertools.product(ways if count else [*ways, PENALIZED], lengths):
            if not _run(pipeline, size, numbers, sampling, length):
                return
    pipeline.free_cached_memory()


def _run(pipeline: Pipeline, size: int, numbers: Iterator[int], sampling: dict[str, Any], length: int) -> bool:
    """Says False where the device has no memory for so many."""
    loop, ids = pipeline.loop, []
    with contextlib.suppress(InputError):  # made for less than this: then there is little to warm up
        ids = loop.add(_requests(pipeline, size, numbers, sampling, length))
    while loop.has_work:
        if any(update.completion is not None and update.completion.out_of_memory for update in loop.step()):
            loop.clear(ids)
            return False
    return True


def _requests(
    pipeline: Pipeline, size: int, numbers: Iterator[int], sampling: dict[str, Any], length: int
) -> list[Request]:
    """Returns so many requests; those with images repeat as many as are encoded in one pass: to make an image and its
    hash takes milliseconds."""
    several = min(size, pipeline.llm.encoders.max_encoder_batch_size) if pipeline.processor.vision else size
    made = [pipeline.request(_made_up(pipeline, next(numbers), length), **LENGTHS, **sampling) for _ in range(several)]
    return list(itertools.islice(itertools.cycle(made), size))


def _made_up(pipeline: Pipeline, number: int, length: int) -> dict[str, Any]:
    """Returns an input like no other, a text of so many tokens: equal ones would share their work."""
    processor, generator = pipeline.processor, torch.Generator().manual_seed(number)
    if (vision := processor.vision) and (processor.tokenizer or not processor.family.takes_prompt):
        pixels = torch.rand(vision.num_channels, *vision.usual_size, generator=generator)
        if processor.family.takes_prompt:
            return {"pixel_values": pixels, "prompt": f"{number}"}
        # of no task, which may need a question
        return {"pixel_values": pixels, "decoder_prompt_token_ids": [processor.config.decoder_start_token_id]}
    ids = torch.randint(processor.vocab_size, (length,), generator=generator).tolist()
    return {pipeline.capabilities.id_field: ids}
