"""What an engine makes of samples: its outputs and their speed, and what it says of given tokens."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vlm.errors import InputError, VlmError
from vlm.quantize.calibration import forced
from vlm_app.core.renamed import with_flags
from vlm_app.quantize.config import MAX_NEW_TOKENS
from vlm_app.quantize.inputs import input_of
from vlm_app.quantize.samples import Sample
from vlm_app.text.tasks import ToInput

if TYPE_CHECKING:
    from vlm.api.outputs import Output
    from vlm.api.pipeline import Pipeline
    from vlm.requests.request import Request

# one output an input, the same at each run, though the model's own settings may sample or search
GREEDY = {"temperature": 0.0, "num_beams": 1, "num_return_sequences": 1}


@dataclass(frozen=True)
class Decoded:
    """Samples with what they became, in order, and what is wrong with the others."""

    samples: list[Sample]
    requests: list[Request]
    outputs: list[Output]
    errors: list[str]
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return sum(len(output.token_ids) for output in self.outputs) / self.seconds


@dataclass(frozen=True)
class Said:
    """What an engine says at each place of a sequence of tokens, [T] each."""

    choices: Tensor  # the likeliest tokens
    logprobs: Tensor  # of the sequence's own


def decode(
    pipeline: Pipeline,
    samples: list[Sample],
    to_input: ToInput,
    max_new_tokens: int | None,
    show: Callable[[int], None],
) -> Decoded:
    """Decodes samples in batches, `max_new_tokens` each, or None: the usual number, or as many as there is room for;
    `show` is called with how many are done. Raises InputError for samples of a kind that the model does not take, and
    where all fail."""
    inputs, sampling = [input_of(pipeline, sample, to_input) for sample in samples], _sampling(pipeline, max_new_tokens)
    outputs: dict[int, Output] = {}
    errors: dict[int, str] = {}
    start = time.perf_counter()
    for index, result in pipeline.as_completed(inputs, on_error="yield", **sampling):
        if isinstance(result, VlmError):
            errors[index] = f"{samples[index].place}: {with_flags(result).rstrip('.')}"
        else:
            outputs[index] = result
        show(len(outputs) + len(errors))
    seconds = time.perf_counter() - start
    if not outputs:
        raise InputError(f"none of the inputs can be given to the model; {errors[0]}.")
    valid = sorted(outputs)
    requests = [pipeline.request(inputs[i], **sampling) for i in valid]
    own, results = [samples[i] for i in valid], [outputs[i] for i in valid]
    return Decoded(own, requests, results, errors=list(errors.values()), seconds=seconds)


def _sampling(pipeline: Pipeline, max_new_tokens: int | None) -> dict[str, Any]:
    """Returns the settings of each request. Whatever lengths the model sets do not count."""
    if max_new_tokens is not None:
        return {**GREEDY, "max_new_tokens": max_new_tokens}
    return {**GREEDY, "default_max_new_tokens": MAX_NEW_TOKENS, "max_length": pipeline.capabilities.max_seq_len}


def sequences(decoded: Decoded) -> list[tuple[Request, list[int]]]:
    """Returns the requests with the tokens of their outputs."""
    return [(request, out.token_ids) for request, out in zip(decoded.requests, decoded.outputs, strict=True)]


def said(pipeline: Pipeline, request: Request, token_ids: list[int]) -> Said:
    """Returns what an engine says of these tokens after the request's prompt."""
    [completion] = pipeline.complete([forced(request, token_ids)])
    assert completion.context_logits is not None
    logprobs = completion.context_logits[-len(token_ids) :].log_softmax(1)
    return Said(logprobs.argmax(1), logprobs.gather(1, torch.tensor(token_ids)[:, None])[:, 0])
