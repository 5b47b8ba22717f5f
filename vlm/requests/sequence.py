"""A request's scheduled state on the host."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vlm.requests.positions import Positions
from vlm.requests.prompt_table import NO_CONTENTS, Contents
from vlm.requests.request import Request
from vlm.requests.sampling_values import draw_seed
from vlm.requests.token_update import Completion, Hypothesis, ScoredPrompt, TokenUpdate

if TYPE_CHECKING:
    from torch import Tensor

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True)
class PrefillChunk:
    """Tokens of a prompt that are to enter the cache of one of a sequence's slots."""

    beam: int
    start: int
    end: int


class SequenceStatus(Enum):
    """Where a sequence is between its request and its completion."""

    WAITING = auto()  # in the queue; it has nothing yet
    PREFILLING = auto()  # it has slots and blocks; some of its prompt is not planned yet
    RUNNING = auto()  # all of its prompt is planned: it takes part in bursts
    PREEMPTED = auto()  # in the queue again, with its tokens; slots and blocks are others'
    FINISHED = auto()  # it has its finish reason and holds nothing


@dataclass(eq=False, slots=True)
class Sequence:
    """A request's scheduled state on the host; what it has on the device is known by its id, slots and blocks."""

    # what it was made from
    id: int
    request: Request
    max_length: int  # tokens in all, prompt included
    num_features: int  # encoder rows
    tokens: list[int]  # prompt, then what was generated
    source: Ids | None = None  # the encoder's tokens [num_features]
    seed: int = 0  # the request's, or one that is drawn
    num_stop_ids: int = 1  # tokens that end it, but for those of stop words
    contents: Contents = NO_CONTENTS  # behind ids beyond the vocabulary
    image_token_id: int | None = None  # what logits processors see of an image's rows,
    first_image_row: int = 0  # … whose ids begin here
    rule_kinds: Collection[int] = ()  # of what it says about tokens (vlm.ops.state.token_rules)
    max_drafts: int = 0  # tokens that are proposed for it in a step
    positions: Positions | None = None  # where the model's have several axes

    # where it is: the scheduler's
    status: SequenceStatus = SequenceStatus.WAITING
    slots: list[int] = field(default_factory=list)  # one a beam
    self_blocks: list[list[int]] = field(default_factory=list)  # of each slot
    spare_blocks: Items[int] = ()  # with several beams: one a slot, for copies
    cross_blocks: Items[int] = ()
    pending_chunks: Items[PrefillChunk] = ()  # of the prompt, not yet planned
    keys: Items[bytes] = ()  # of the prompt's whole blocks, where they are shared
    scheduled: int = 0  # upper bound of len(tokens), or beyond max_length, once every launched burst has run
    preemptions: int = 0
    first_scheduled_time: float = 0.0  # time.perf_counter() when it first left the queue

    # what has come of it: the engine's
    logprobs: list[float] = field(default_factory=list)  # of each generated token
    top_logprobs: list[dict[int, float]] = field(default_factory=list)  # likewise, where they were asked for
    prompt: ScoredPrompt | None = None  # where its log-probabilities were asked for, once there is a token
    hypotheses: tuple[Hypothesis, ...] = ()  # of a beam search, once it has ended
    num_drafted: int = 0  # tokens that were proposed,
    num_accepted: int = 0  # … and those of them that were chosen
    draft_gain: float = 1.0  # of drafts, in tokens a step: see vlm.engine.drafting
    finish_reason: str = ""  # once it has finished

    # of its request, which a step asks for several times
    width: int = field(init=False)  # slots it takes
    prompt_length: int = field(init=False)
    adapted: bool = field(init=False)
    stops: bool = field(init=False)  # by words or strings, which the host looks for

    def __post_init__(self) -> None:
        params = self.request.params
        self.seed = draw_seed() if params.seed is None else params.seed
        self.width, self.prompt_length = params.num_beams, len(self.request.decoder_prompt_token_ids)
        self.adapted = self.request.adapted
        self.stops = self.request.stops is not None or bool(params.stop_words_ids)

    @property
    def slot(self) -> int:
        """Returns the first one. Raises IndexError while the sequence waits."""
        return self.slots[0]

    @property
    def num_ends(self) -> int:
        """Returns the tokens that may end one of its beams."""
        return self.num_stop_ids + len({word[-1] for word in self.request.params.stop_words_ids})

    @property
    def ngram_size(self) -> int:
        """Returns the size of the n-grams that must not come twice; 0 where there are none, or its length has no room
        for two."""
        size = self.request.params.no_repeat_ngram_size
        return size if size < self.max_length else 0

    @property
    def history(self) -> list[int]:
        """The tokens as logits processors see them: each row of an image is the image's token, as in Hugging Face. The
        last token, which is yet to be embedded, stays as it is."""
        if self.image_token_id is None:
            return self.tokens
        image, first = self.image_token_id, self.first_image_row
        return [*[image if token >= first else token for token in self.tokens[:-1]], self.tokens[-1]]

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.prompt_length

    def ends_with(self, chunk: PrefillChunk) -> bool:
        """Says whether a chunk has its last token, too: the next one follows from the chunk's pass."""
        return chunk.end == len(self.tokens)

    @property
    def queued(self) -> bool:
        """Says whether it waits, for the first time or again."""
        return self.status is SequenceStatus.WAITING or self.status is SequenceStatus.PREEMPTED

    @property
    def finished(self) -> bool:
        return self.status is SequenceStatus.FINISHED

    def finish(self, reason: str) -> None:
        """Ends it; what it holds is returned next."""
        self.status, self.finish_reason = SequenceStatus.FINISHED, reason

    def update(self, num_new: int, completion: Completion | None = None) -> TokenUpdate:
        """Returns what the last `num_new` generated tokens bring."""
        end = len(self.tokens)
        begin = end - self.prompt_length - num_new
        return TokenUpdate(
            self.id,
            tuple(self.tokens[end - num_new :]),
            tuple(self.logprobs[begin:]),
            tuple(self.top_logprobs[begin:]),
            time.perf_counter(),
            completion,
            None if begin else self.prompt,
        )

    def completion(self, context_logits: Tensor | None = None, generation_logits: Tensor | None = None) -> Completion:
        """Returns what the request has come to; logits as Completion has them."""
        return Completion(
            self.request,
            self.generated,
            self.logprobs,
            self.finish_reason,
            self.seed,
            prompt_tokens=self.num_features or self.prompt_length,
            top_logprobs=self.top_logprobs,
            hypotheses=self.hypotheses,
            context_logits=context_logits,
            generation_logits=generation_logits,
            preemptions=self.preemptions,
            num_drafted=self.num_drafted,
            num_accepted=self.num_accepted,
            first_scheduled_time=self.first_scheduled_time,
            prompt=self.prompt,
        )


def any_adapted(sequences: Iterable[Sequence]) -> bool:
    """Says whether any of them has an adapter: passes of the base alone do without."""
    return any(sequence.adapted for sequence in sequences)
