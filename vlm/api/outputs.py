"""What comes back: outputs of generation, encodings; and how what a request has come to is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from vlm.processing.text.stream import TextStream, before_stop
from vlm.processing.text.tokenization import Tokenizer
from vlm.registry.spec import FamilySpec
from vlm.requests.loops import loop_period, without_loop
from vlm.requests.request import Request
from vlm.requests.sampling_params import SamplingParams
from vlm.requests.sampling_values import draw_seed
from vlm.requests.token_update import Completion, Hypothesis, PromptLogprobs
from vlm.stage_clock import StageClock

if TYPE_CHECKING:
    import torch


@dataclass  # a frozen one takes three times as long to make: nothing else happens when the last of a batch has ended
class Output:
    """What one input gave."""

    text: str  # post-processed (Nougat: markdown)
    raw_text: str  # as decoded
    token_ids: list[int]  # generated, the end token included
    finish_reason: str  # eos | length | stop | loop | abort
    logprobs: list[float]  # of each generated token, under the model at temperature 1
    seed: int  # gives the same tokens again
    top_logprobs: list[dict[int, float]] | None = None  # of each place, the likeliest tokens, as many as asked for
    prompt_logprobs: PromptLogprobs | None = None  # of each token of the decoder's prompt, as it says
    score: float | None = None  # of a beam search: what its outcomes are ranked by
    # not compared: tensors say of each value whether it is equal
    context_logits: torch.Tensor | None = field(default=None, compare=False)  # [prompt, vocab] float32: its prompt's
    generation_logits: torch.Tensor | None = field(default=None, compare=False)  # [new, vocab] float32: unprocessed
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


@dataclass(frozen=True, eq=False)  # tensors say of each value whether it is equal
class Encoding:
    """What the encoder made of one input of `T` rows."""

    last_hidden_state: torch.Tensor  # [T, hidden], in the engine's type
    token_ids: tuple[int, ...] | None = None  # of a text
    hidden_states: tuple[torch.Tensor, ...] | None = None  # embeddings, each block's output, the last one normalized
    attentions: tuple[torch.Tensor, ...] | None = None  # a block: [heads, T, T] float32


def samples_of(request: Request) -> list[Request]:
    """Returns one request, or as many as there are samples, each with a seed of its own."""
    params = request.params
    if params.num_beams > 1 or params.num_return_sequences == 1:
        return [request]
    seed = draw_seed() if params.seed is None else params.seed
    seeds = [(seed + i) % 2**63 for i in range(params.num_return_sequences)]
    return [replace(request, params=replace(params, seed=seed)) for seed in seeds]


def text_stream(tokenizer: Tokenizer, params: SamplingParams) -> TextStream:
    """Returns the text of a request's output as it grows."""
    view = tokenizer.showing(special_tokens=not params.skip_special_tokens)
    return TextStream(view, params.stop, keep_stop=params.include_stop_str_in_output)


@dataclass(frozen=True)
class OutputReader:
    """Reads what requests to one engine have come to: tokens -> text."""

    tokenizer: Tokenizer | None
    family: FamilySpec
    clock: StageClock = field(default_factory=StageClock)  # of who reads many

    def output(self, completion: Completion) -> Output:
        """Returns a completion's output, with the other outcomes of its search as alternatives."""
        if not completion.hypotheses:
            return self._decoded(completion, completion)
        hypotheses = completion.hypotheses[: completion.request.params.num_return_sequences]
        best, *others = [self._decoded(completion, each, each.score) for each in hypotheses]
        return replace(best, alternatives=tuple(others))

    def merged(self, samples: Iterable[Completion]) -> Output:
        """Returns the first sample's output, the others as its alternatives."""
        first, *others = map(self.output, samples)
        return replace(first, alternatives=tuple(others)) if others else first

    def _decoded(self, completion: Completion, outcome: Completion | Hypothesis, score: float | None = None) -> Output:
        params = completion.request.params
        raw = before_stop(self._text(completion, outcome), params.stop, keep=params.include_stop_str_in_output)
        return Output(
            self._read(completion.request, raw),
            raw,
            outcome.token_ids,
            outcome.finish_reason,
            outcome.logprobs,
            completion.seed,
            top_logprobs=completion.top_logprobs if params.top_logprobs else None,
            prompt_logprobs=completion.prompt.logprobs if completion.prompt else None,
            score=score,
            context_logits=completion.context_logits,
            generation_logits=completion.generation_logits,
        )

    def _read(self, request: Request, raw: str) -> str:
        """Returns what users read of what the model wrote."""
        if request.answer_form is not None and self.family.prompt_tasks is not None:
            return self.family.prompt_tasks.answer(raw, request.answer_form)
        begun = self._shown(request.params, request.decoder_prompt_token_ids) if self.family.reads_prompt else ""
        return self.family.postprocess(begun + raw)

    def _text(self, completion: Completion, outcome: Completion | Hypothesis) -> str:
        """Returns the decoded tokens; of a loop its first turn."""
        request, token_ids = completion.request, outcome.token_ids
        if outcome.finish_reason == "loop":
            whole = [*request.decoder_prompt_token_ids, *completion.token_ids]
            token_ids = without_loop(token_ids, period) if (period := loop_period(whole)) else token_ids
        return self._shown(request.params, token_ids)

    def _shown(self, params: SamplingParams, token_ids: Sequence[int]) -> str:
        if self.tokenizer is None:
            return ""
        return self.tokenizer.showing(special_tokens=not params.skip_special_tokens).decode(list(token_ids))
