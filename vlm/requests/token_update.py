"""What a step brings for a request, and what the request has come to: in tokens, immutable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from vlm.requests.request import Request


# of each token of a decoder's prompt, its own first, then those of the likeliest ones; None: the first one's, and those
# of rows that are no tokens
PromptLogprobs = list[dict[int, float] | None]


@dataclass(frozen=True)
class Hypothesis:
    """One outcome of a beam search."""

    token_ids: list[int]  # generated
    logprobs: list[float]
    score: float  # sum of the log-probabilities over length ** length_penalty
    finish_reason: str = ""  # the engine knows it


class ScoredPrompt(NamedTuple):
    """A decoder's prompt, and what the model says about it."""

    token_ids: tuple[int, ...]
    logprobs: PromptLogprobs

    def within(self, vocab_size: int) -> ScoredPrompt:
        """Returns it without rows that are no tokens: ids beyond the vocabulary."""
        places = [(i, own) for i, own in zip(*self, strict=True) if i < vocab_size]
        return ScoredPrompt(tuple(i for i, _ in places), [own for _, own in places])


class Completion(NamedTuple):
    """What a request has come to."""

    request: Request
    token_ids: list[int]  # generated, the end token included; of a search those of its best hypothesis
    logprobs: list[float]  # of each of them
    finish_reason: str  # eos | stop | length | loop | abort | memory
    seed: int  # gives the same tokens again
    prompt_tokens: int  # rows of its encoder, or tokens and image rows of its prompt
    top_logprobs: list[dict[int, float]]  # of each token the likeliest ones, where they were asked for
    hypotheses: tuple[Hypothesis, ...]  # of a beam search, best first
    context_logits: Tensor | None  # [prompt, vocab] float32: of every token of the decoder's prompt
    generation_logits: Tensor | None  # [new, vocab] float32: each token's, as the model gave them
    preemptions: int
    num_drafted: int  # tokens that prompt lookup proposed,
    num_accepted: int  # … and those of them that are in the output
    first_scheduled_time: float  # time.perf_counter() when it first left the queue; 0: it never did
    prompt: ScoredPrompt | None = None  # where its log-probabilities were asked for and it was computed

    @property
    def out_of_memory(self) -> bool:
        """Says whether it is lost because the device ran out of memory."""
        return self.finish_reason == "memory"


class TokenUpdate(NamedTuple):
    """What a step brought for one request. A tuple: a step makes one of them a sequence."""

    request_id: int
    token_ids: tuple[int, ...]  # new ones
    logprobs: tuple[float, ...]  # of each of them
    top_logprobs: tuple[dict[int, float], ...]  # of each of them, where they were asked for
    time: float  # time.perf_counter() when the host had read them
    completion: Completion | None  # once the request has finished
    prompt: ScoredPrompt | None = None  # with the first of the tokens, where its log-probabilities were asked for

    @property
    def finished(self) -> bool:
        """Says whether this is the request's last update."""
        return self.completion is not None

    def whole(self) -> TokenUpdate:
        """Returns a request's last update as if it had brought all of its tokens."""
        assert self.completion is not None
        tokens, logprobs, top = self.completion.token_ids, self.completion.logprobs, self.completion.top_logprobs
        return self._replace(
            token_ids=tuple(tokens),
            logprobs=tuple(logprobs),
            top_logprobs=tuple(top),
            prompt=self.completion.prompt,
        )

    def followed_by(self, later: TokenUpdate) -> TokenUpdate:
        """Returns both as one update of the request."""
        return later._replace(
            token_ids=self.token_ids + later.token_ids,
            logprobs=self.logprobs + later.logprobs,
            top_logprobs=self.top_logprobs + later.top_logprobs,
            prompt=self.prompt or later.prompt,
        )
