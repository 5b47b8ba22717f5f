"""What comes back: outputs of generation, encodings; and how a finished sequence is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from vlm.processing.tokenization import TextStream, Tokenizer, before_stop
from vlm.requests.loops import loop_period, without_loop
from vlm.requests.request import Request
from vlm.requests.sampling_params import SamplingParams
from vlm.requests.sequence import Sequence

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Output:
    """What one input gave."""

    text: str  # post-processed (Nougat: markdown)
    raw_text: str  # as decoded
    token_ids: list[int]  # generated, the end token included
    finish_reason: str  # eos | length | stop | loop | abort
    logprobs: list[float]  # of each generated token, under the model at temperature 1
    seed: int  # gives the same tokens again
    top_logprobs: list[dict[int, float]] | None = None  # of each place, the likeliest tokens, as many as asked for
    score: float | None = None  # of a beam search: what its outcomes are ranked by
    context_logits: torch.Tensor | None = None  # [prompt, vocab] float32: of every token of the decoder's prompt
    generation_logits: torch.Tensor | None = None  # [new, vocab] float32: each token's, as the model gave them
    alternatives: tuple[Output, ...] = ()  # the other ones of num_return_sequences, best first

    @property
    def cumulative_logprob(self) -> float:
        """Returns the log-probability of the whole output."""
        return sum(self.logprobs)


def json_fields(output: Output) -> dict[str, Any]:
    """Returns what JSON holds of an output: all but logits."""
    own = {f.name: getattr(output, f.name) for f in fields(output) if not f.name.endswith("_logits")}
    others = own.get("alternatives", ())
    return own | ({"alternatives": tuple(map(json_fields, others))} if others else {})


@dataclass(frozen=True)
class Encoding:
    """What the encoder made of one input of `T` rows."""

    last_hidden_state: torch.Tensor  # [T, hidden], in the engine's type
    token_ids: tuple[int, ...] | None = None  # of a text
    hidden_states: tuple[torch.Tensor, ...] | None = None  # embeddings, each block's output, the last one normalized
    attentions: tuple[torch.Tensor, ...] | None = None  # a block: [heads, T, T] float32


class Samples:
    """The requests that one input has become."""

    def __init__(self, index: int, ids: list[int]):
        self.index, self.ids = index, ids
        self.done: dict[int, Sequence] = {}

    def add(self, sequence: Sequence) -> bool:
        """Takes a finished one; True when it was the last."""
        self.done[sequence.id] = sequence
        return len(self.done) == len(self.ids)


def samples_of(request: Request) -> list[Request]:
    """One request, or as many as there are samples, each with a seed of its own."""
    params = request.params
    if params.num_beams > 1 or params.num_return_sequences == 1:
        return [request]
    seed = int.from_bytes(os.urandom(7), "little") if params.seed is None else params.seed
    seeds = [(seed + i) % 2**63 for i in range(params.num_return_sequences)]
    return [replace(request, params=replace(params, seed=seed)) for seed in seeds]


def text_stream(tokenizer: Tokenizer, params: SamplingParams) -> TextStream:
    """Returns the text of a request's output as it grows."""
    shown = tokenizer.showing(special_tokens=not params.skip_special_tokens)
    return TextStream(shown, params.stop, params.include_stop_str_in_output)


@dataclass(frozen=True)
class OutputReader:
    """Reads finished sequences of one engine: tokens -> text."""

    tokenizer: Tokenizer | None
    postprocess: Callable[[str], str]
    reason_of: Callable[[Sequence, list[int]], str]  # why a hypothesis of a search ended

    def output(self, sequence: Sequence) -> Output:
        """A sequence's, with the other outcomes of its search as alternatives."""
        if not sequence.hypotheses:
            return self._decoded(sequence, sequence.generated, sequence.logprobs, sequence.finish_reason)
        best, *others = [
            self._decoded(sequence, h.token_ids, h.logprobs, self.reason_of(sequence, h.token_ids), h.score)
            for h in sequence.hypotheses[: sequence.request.params.num_return_sequences]
        ]
        return replace(best, alternatives=tuple(others))

    def merged(self, samples: Samples) -> Output:
        """The first sample's, the others as its alternatives."""
        first, *others = [self.output(samples.done[i]) for i in samples.ids]
        return replace(first, alternatives=tuple(others)) if others else first

    def _decoded(
        self, sequence: Sequence, tokens: list[int], logprobs: list[float], reason: str, score: float | None = None
    ) -> Output:
        shown, params = tokens, sequence.request.params
        if reason == "loop" and (period := loop_period(sequence.tokens)):
            shown = without_loop(tokens, period)
        tokenizer = self.tokenizer and self.tokenizer.showing(special_tokens=not params.skip_special_tokens)
        raw = before_stop(tokenizer.decode(shown) if tokenizer else "", params.stop, params.include_stop_str_in_output)
        top = sequence.top_logprobs if params.top_logprobs else None
        return Output(
            self.postprocess(raw), raw, tokens, reason, logprobs, sequence.seed, top, score, *logits_of(sequence)
        )


def logits_of(sequence: Sequence) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Those of a sequence's prompt and of its output, where its request wants them."""
    import torch

    params, generated = sequence.request.params, sequence.generation_logits
    context = [*sequence.context_logits, *(logits[None] for logits in generated[:1])]
    return (
        torch.cat(context) if params.return_context_logits and generated else None,
        torch.stack(generated) if params.return_generation_logits and generated else None,
    )
