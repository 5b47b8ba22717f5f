"""What is asked (`Request`, immutable), how it is sampled, its scheduled state (`Sequence`), and what comes back."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from vlm.errors import InputError
from vlm.runtime.sampling_checks import check

if TYPE_CHECKING:
    from torch import Tensor

    from vlm.runtime.prompt_table import Image, PromptTable

FINISH_REASONS = ("", "stop", "loop", "length")  # by the device's finish code; 0 is running


@dataclass(frozen=True)
class SamplingParams:
    """Temperature 0 is greedy. The defaults switch every filter and penalty off; they are applied in Hugging Face's
    order, whose names and meanings they have (`vlm.ops.controls`, then `vlm.ops.sample`)."""

    max_new_tokens: int | None = None  # None: up to max_length
    max_length: int | None = None  # with the prompt; None: as many as the engine holds
    usual_new_tokens: int | None = None  # a model's own limit: so many, or as many as the engine holds
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    top_h: float = 0.0  # likeliest tokens up to this part of the entropy, 0: off
    typical_p: float = 1.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    encoder_repetition_penalty: float = 1.0  # above 1: tokens of the input, a decoder's prompt, count more
    encoder_no_repeat_ngram_size: int = 0  # n-grams of the input that must not come
    bad_words_ids: tuple[tuple[int, ...], ...] = ()  # each word's tokens
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] = ()  # added to the last token's logit after the others
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()  # at the first place alone
    exponential_decay_length_penalty: tuple[int, float] | None = None  # ends get likelier: after n tokens, by a factor
    remove_invalid_values: bool = False  # NaN and infinite logits become finite
    renormalize_logits: bool = False  # of beams: probabilities add up to 1 after penalties and prohibitions
    min_new_tokens: int = 0
    min_length: int = 0  # with the prompt
    seed: int | None = None  # None: drawn at random
    top_p_decay: float = 1.0  # factual nucleus (arXiv:2206.04624): top_p shrinks by this factor with each token
    top_p_min: float = 0.0  # … to no less than this,
    top_p_reset_id: int | None = None  # … and is as at the start after this token
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()  # strings that end the output and are left out of its text
    stop_words_ids: tuple[tuple[int, ...], ...] = ()  # token sequences that end the output
    top_logprobs: int = 0  # log-probabilities of so many likeliest tokens at each place
    return_context_logits: bool = False  # of every token of a decoder's prompt
    return_generation_logits: bool = False  # that each token was chosen from, before penalties and prohibitions
    forced_bos_token_id: int | None = None  # must follow a lone start token (mBART-50: the target's language)
    forced_eos_token_id: int | tuple[int, ...] | None = None  # must end an output of full length, one of several
    ignore_eos: bool = False
    num_beams: int = 1  # above 1: beam search
    num_return_sequences: int = 1  # the best beams, or so many samples
    length_penalty: float = 1.0  # beams are ranked by sum of log-probabilities / length ** length_penalty
    early_stopping: bool | str = False  # end with num_beams hypotheses; "never": only when none can do better
    diversity_rate: float = 0.0  # each rank among the continuations of one beam costs so much
    loop_detection: bool = False

    def __post_init__(self) -> None:
        check(self)

    @property
    def controlled(self) -> bool:
        """Does anything but temperature and the filters of a draw shape the choice?"""
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        lengths = self.min_new_tokens or self.min_length or self.exponential_decay_length_penalty
        return penalties != (1.0, 0.0, 0.0) or bool(
            self.no_repeat_ngram_size or lengths or self.names_tokens or self.remove_invalid_values
        )

    @property
    def returns_logits(self) -> bool:
        # the prompt's last token is that of the first step
        return self.return_generation_logits or self.return_context_logits

    @property
    def names_tokens(self) -> bool:
        """Are there rules about certain tokens or sequences of them?"""
        several_ends = isinstance(self.forced_eos_token_id, tuple)
        of_prompt = self.encoder_repetition_penalty != 1.0 or self.encoder_no_repeat_ngram_size
        named = self.bad_words_ids or self.sequence_bias or self.suppress_tokens or self.begin_suppress_tokens
        return bool(named or several_ends or of_prompt)

    @property
    def rare(self) -> bool:
        """Are there settings that change the logits last of all?"""
        return bool(self.exponential_decay_length_penalty or self.remove_invalid_values or self.renormalize_logits)

    @property
    def filtered(self) -> bool:
        """Does a draw go by entropy or by probabilities alone, after top-k, top-p and min-p?"""
        return self.temperature > 0 and (
            self.typical_p < 1.0 or bool(self.epsilon_cutoff or self.eta_cutoff or self.top_h)
        )


class Stops(Protocol):
    """The engine knows no text: who does says where to stop."""

    def end(self, token_ids: list[int], known: int) -> int | None:
        """All generated tokens, the first `known` of them seen before -> how many to keep; None: go on."""


@dataclass(frozen=True, eq=False)
class Request:
    """One input: what the encoder takes, or its output, and the tokens the decoder starts from.

    Ids from the vocabulary's size on stand for rows of the request's prompt table: those of `prompt_table`, then the
    features of `images`. They stand among the encoder's ids, and without an encoder among the decoder's.
    """

    decoder_prompt_token_ids: tuple[int, ...]
    pixel_values: Tensor | None = None  # [C, H, W] float32: of an image whose features the decoder attends to
    encoder_input_ids: tuple[int, ...] | None = None
    encoder_output: Tensor | None = None  # [T, hidden]
    params: SamplingParams = field(default_factory=SamplingParams)
    stops: Stops | None = None  # where the output's text ends it
    images: tuple[Image, ...] = ()
    prompt_table: PromptTable | None = None

    def __post_init__(self) -> None:
        given = (self.pixel_values, self.encoder_input_ids, self.encoder_output)
        if sum(part is not None for part in given) > 1:
            raise InputError("a request takes one of pixel_values, encoder_input_ids and encoder_output.")
        if self.encoder_input_ids is not None and not self.encoder_input_ids:
            raise InputError("the text is empty; the encoder needs at least one token.")
        if not self.decoder_prompt_token_ids:
            raise InputError("decoder_prompt_token_ids is empty; it needs at least the decoder's start token.")


@dataclass(frozen=True)
class Span:
    """Tokens of a prompt that are to enter the cache of one of a sequence's slots."""

    beam: int
    start: int
    end: int


@dataclass(frozen=True)
class Hypothesis:
    """One outcome of a beam search."""

    token_ids: list[int]  # generated
    logprobs: list[float]
    score: float  # sum of the log-probabilities over length ** length_penalty


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
    contents: list[bytes] = field(default_factory=list)  # what each row of its prompt table is made of
    work: list[Span] = field(default_factory=list)  # of the prompt, not yet computed
    keys: list[bytes] = field(default_factory=list)  # of the prompt's whole blocks, where they are shared
    table: Tensor | None = None  # [n, hidden] on the device, while there is work
    scheduled: int = 0  # upper bound of len(tokens) once every launched burst has run
    finish_reason: str = ""
    seed: int = 0
    num_stop_ids: int = 1
    rule_kinds: tuple[int, ...] = ()  # of what it says about tokens (vlm.ops.token_rules)
    preemptions: int = 0
    top_logprobs: list[dict[int, float]] = field(default_factory=list)
    context_logits: list[Tensor] = field(default_factory=list)  # of the prompt but its last token, [n, vocab] each
    generation_logits: list[Tensor] = field(default_factory=list)  # [vocab] each
    hypotheses: list[Hypothesis] = field(default_factory=list)  # of a beam search, once it has ended

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
    def prompt_length(self) -> int:
        return len(self.request.decoder_prompt_token_ids)

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def finished(self) -> bool:
        return bool(self.finish_reason)


@dataclass(frozen=True)
class Update:
    """What a burst brought for one sequence."""

    sequence: Sequence
    new_token_ids: tuple[int, ...]
    finished: bool  # by this burst; the sequence itself may have moved on since
