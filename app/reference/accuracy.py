"""Our tokens and log-probabilities beside Hugging Face's: the same ids, pixels, type and device, decoded greedily or by
beams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vlm.errors import InputError, OutOfMemoryError, counted, listed
from vlm.limits import MAX_TOP_LOGPROBS
from vlm.requests.sampling_params import SamplingParams
from vlm_app.reference.reference import Reference

if TYPE_CHECKING:
    from vlm.api.outputs import Output
    from vlm.api.pipeline import Pipeline
    from vlm.requests.request import Request

# what both sides do, over a model's own settings: penalties would count the rows of images in ways of their own
GREEDY = {"temperature": 0.0, "num_beams": 1, "num_return_sequences": 1, "repetition_penalty": 1.0,
          "no_repeat_ngram_size": 0, "loop_detection": False, "top_logprobs": MAX_TOP_LOGPROBS}  # fmt: skip
# options that both sides heed, and one that is of no use here; others must be as if they were not there
COMMON = ("max_new_tokens", "max_length", "min_new_tokens", "forced_bos_token_id", "forced_eos_token_id", "seed",
          "loop_detection", "top_logprobs", "num_beams", "length_penalty", "early_stopping")  # fmt: skip


@dataclass(frozen=True)
class Accuracy:
    """How far we are from Hugging Face."""

    requests: int
    tokens: int  # that we generated
    agreement: float  # percent of the tokens that are the same at their place; of the longer output of the two
    # largest difference of a log-probability: of our tokens and, without beams, of the likeliest ones at each place
    error: float

    def __str__(self) -> str:
        return (
            f"token agreement with Hugging Face {self.agreement:.2f}%, maximum log-probability error {self.error:.3g}"
            f" ({counted(self.tokens, 'token')} of {counted(self.requests, 'request')})"
        )


def comparable(sampling: dict[str, Any]) -> dict[str, Any]:
    """Returns the options with what a comparison needs: greedy decoding, or the beams that they name. InputError for
    those that cannot be compared."""
    plain = SamplingParams()
    if unsupported := [n for n, value in sampling.items() if n not in COMMON and value != getattr(plain, n)]:
        raise InputError(
            f"the accuracy check decodes greedily or by beams, one output a request; leave {listed(unsupported)} out.",
            settings=tuple(unsupported),
        )
    if (beams := sampling.get("num_beams", 1)) == 1:
        return {**sampling, **GREEDY}
    return {**sampling, **GREEDY, "num_beams": beams, "top_logprobs": 0}  # which beams do not have


def compare(
    folder: Path,
    pipeline: Pipeline,
    inputs: Iterable[Any],
    outputs: Iterable[Output],
    sampling: dict[str, Any],
    reference_dtype: str | None = None,
) -> Accuracy:
    """Compares Hugging Face's outputs with those that `pipeline` gave for the inputs and `comparable(sampling)`.

    `reference_dtype`: what Hugging Face computes in; None: the engine's type. Raises InputError for an input that
    cannot be compared, and OutOfMemoryError where both do not fit.
    """
    requests = [pipeline.request(source, **comparable(sampling)) for source in inputs]
    with fitting_beside():
        return compare_outputs(Reference.load(folder, pipeline, reference_dtype), requests, list(outputs))


@contextmanager
def fitting_beside() -> Iterator[None]:
    """Raises OutOfMemoryError with a step to take where two models are too much for the device."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise OutOfMemoryError(
            "Hugging Face's model does not fit beside ours on this device; check with --device cpu."
        ) from None


def compare_outputs(reference: Reference, requests: list[Request], outputs: list[Output]) -> Accuracy:
    """Compares what the pipeline gave for these requests with what the reference gives."""
    same, longest, error = 0, 0, 0.0
    for request, output in zip(requests, outputs, strict=True):
        theirs, ours = reference.tokens(request), output.token_ids
        same += sum(a == b for a, b in zip(ours, theirs, strict=False))
        longest += max(len(ours), len(theirs))
        exact = reference.log_probabilities(request, ours)
        error = max(error, _error(exact, output, request.params.forced_tokens))
    tokens = sum(len(output.token_ids) for output in outputs)
    return Accuracy(len(outputs), tokens, 100 * same / max(longest, 1), error)


def _error(exact: Tensor, output: Output, forced: frozenset[int]) -> float:
    """Returns the largest difference of our log-probabilities from exact [tokens, vocabulary]; a token that was
    `forced` has the log-probability 0, which is not the model's."""
    tops = output.top_logprobs or [{}] * len(output.token_ids)
    error, places = 0.0, zip(output.token_ids, output.logprobs, tops, strict=True)
    for row, (token, own, top) in zip(exact, places, strict=True):
        pairs = [*top.items()] if own == 0.0 and token in forced else [(token, own), *top.items()]
        if pairs:
            ids, ours = zip(*pairs, strict=True)
            error = max(error, float((row[list(ids)] - torch.tensor(ours)).abs().max()))
    return error
