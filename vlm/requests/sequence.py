"""A request's scheduled state on the host."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vlm.requests.request import Request
from vlm.requests.token_update import Completion, Hypothesis, TokenUpdate

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PrefillChunk:
    """Tokens of a prompt that are to enter the cache of one of a sequence's slots."""

    beam: int
    start: int
    end: int


@dataclass(eq=False)
class Sequence:
    """A request's scheduled state on the host; what it has on the device is behind `slot` and the block lists."""

    id: int
    request: Request
    max_length: int  # tokens in all, prompt included
    num_features: int  # encoder rows
    tokens: list[int]  # prompt, then what was generated
    logprobs: list[float] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)  # one a beam
    self_blocks: list[list[int]] = field(default_factory=list)  # of each slot
    spare_blocks: list[int] = field(default_factory=list)  # with several beams: one a slot, for copies
    cross_blocks: list[int] = field(default_factory=list)
    content_keys: list[bytes] = field(default_factory=list)  # of each prompt embedding
    pending_chunks: list[PrefillChunk] = field(default_factory=list)  # of the prompt, not yet computed
    keys: list[bytes] = field(default_factory=list)  # of the prompt's whole blocks, where they are shared
    prompt_embeds: Tensor | None = None  # [n, hidden] on the device, while there is work
    scheduled: int = 0  # upper bound of len(tokens) once every launched burst has run
    finish_reason: str = ""
    seed: int = 0
    num_stop_ids: int = 1
    first_scheduled_time: float = 0.0  # time.perf_counter() when it first left the queue
    image_token_id: int | None = None  # what logits processors see of an image's rows,
    first_image_row: int = 0  # … whose ids begin here
    rule_kinds: tuple[int, ...] = ()  # of what it says about tokens (vlm.ops.token_rules)
    preemptions: int = 0
    top_logprobs: list[dict[int, float]] = field(default_factory=list)
    context_logits: list[Tensor] = field(default_factory=list)  # of the prompt but its last token, [n, vocab] each
    generation_logits: list[Tensor] = field(default_factory=list)  # [vocab] each
    hypotheses: tuple[Hypothesis, ...] = ()  # of a beam search, once it has ended

    def __post_init__(self) -> None:
        seed = self.request.params.seed
        self.seed = int.from_bytes(os.urandom(7), "little") if seed is None else seed

    @property
    def slot(self) -> int | None:
        """The first one; None while the sequence waits."""
        return self.slots[0] if self.slots else None

    @property
    def width(self) -> int:
        """Slots it takes."""
        return self.request.params.num_beams

    @property
    def num_ends(self) -> int:
        """Returns the tokens that may end one of its beams."""
        return self.num_stop_ids + len({word[-1] for word in self.request.params.stop_words_ids})

    @property
    def prompt_length(self) -> int:
        return len(self.request.decoder_prompt_token_ids)

    @property
    def history(self) -> list[int]:
        """The tokens as logits processors see them: each row of an image is the image's token, as in Hugging Face. The
        last token, which is yet to be embedded, stays as it is."""
        if self.image_token_id is None:
            return self.tokens
        image, first = self.image_token_id, self.first_image_row
        return [*(image if token >= first else token for token in self.tokens[:-1]), self.tokens[-1]]

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def finished(self) -> bool:
        return bool(self.finish_reason)

    def update(self, num_new: int) -> TokenUpdate:
        """Returns what the last `num_new` generated tokens bring, and all of it once the sequence has finished."""
        begin, tokens = self.num_generated - num_new, self.tokens
        return TokenUpdate(
            self.id,
            tuple(tokens[len(tokens) - num_new :]),
            tuple(self.logprobs[begin:]),
            tuple(self.top_logprobs[begin:]),
            time.perf_counter(),
            self.completion() if self.finish_reason else None,
        )

    def completion(self) -> Completion:
        """Returns what the request has come to."""
        return Completion(
            self.request,
            self.generated,
            self.logprobs,
            self.finish_reason,
            self.seed,
            prompt_tokens=self.num_features or self.prompt_length,
            top_logprobs=self.top_logprobs,
            hypotheses=self.hypotheses,
            context_logits=self.context_logits,
            generation_logits=self.generation_logits,
            preemptions=self.preemptions,
            first_scheduled_time=self.first_scheduled_time,
        )
