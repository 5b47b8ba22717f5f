"""What is asked (`Request`, immutable), how it is sampled, its scheduled state (`Sequence`), and what comes back."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from vlm.errors import InputError
from vlm.options import option
from vlm.requests.sampling_checks import check

if TYPE_CHECKING:
    from torch import Tensor

    from vlm.requests.prompt_table import Image, PromptTable

MODELS = "the model's"  # what a model's generation_config.json may set
EARLY_STOPPING = {"true": True, "false": False, "never": "never"}


def read_early_stopping(text: str) -> bool | str:
    """Reads true, false or never. InputError for anything else."""
    if text.lower() not in EARLY_STOPPING:
        raise InputError(f"early_stopping is {text!r}; it must be true, false or never.")
    return EARLY_STOPPING[text.lower()]


def read_ids(text: str) -> tuple[int, ...] | int:
    """Reads a token's id, or several with commas between them. InputError for anything else."""
    try:
        ids = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"the token ids are {text!r}; give numbers with commas between them, say 2,5.") from None
    return ids if len(ids) > 1 else ids[0]


def read_logit_bias(text: str) -> tuple[tuple[int, float], ...]:
    """Reads 13=-100,20=2.5: what is added to the logits of tokens. InputError for anything else."""
    try:
        pairs = [part.split("=") for part in text.split(",")]
        return tuple((int(token), float(value)) for token, value in pairs)
    except ValueError:
        raise InputError(f"logit_bias is {text!r}; write token ids and what is added to them, say 13=-100.") from None


@dataclass(frozen=True)
class SamplingParams:
    """Temperature 0 is greedy. The defaults switch every filter and penalty off; they are applied in Hugging Face's
    order, whose names and meanings they have (`vlm.ops.controls`, then `vlm.ops.sample`)."""

    max_new_tokens: int | None = option(
        None, "Tokens to generate at most.", default="the model's, or as many as the engine holds"
    )
    max_length: int | None = option(
        None, "The same with the prompt's; --max-new-tokens comes before it.", default="the model's"
    )
    usual_new_tokens: int | None = None  # a model's own limit: so many, or as many as the engine holds
    temperature: float = option(0.0, "0 is greedy; above it tokens are drawn at random.", default=f"{MODELS}, or 0")
    top_k: int = option(0, "Draw from the k likeliest; 0: all.", default=f"{MODELS}, or 0")
    top_p: float = option(1.0, "Draw from the likeliest that make up p.", default=f"{MODELS}, or 1")
    min_p: float = option(0.0, "Draw from those of at least p times the likeliest's chance.", default=MODELS)
    top_h: float = option(0.0, "Draw from the likeliest that make up this part of the entropy; 0: all.", default=MODELS)
    typical_p: float = option(1.0, "Draw from those of about the expected surprise that make up p.", default=MODELS)
    epsilon_cutoff: float = option(0.0, "Draw from those of at least this chance.", default=MODELS)
    eta_cutoff: float = option(0.0, "The same, less where the next token is uncertain.", default=MODELS)
    repetition_penalty: float = option(1.0, "Above 1: tokens that stand there already count less.", default=MODELS)
    presence_penalty: float = option(0.0, "Taken off what the output holds.")
    frequency_penalty: float = option(0.0, "Taken off for each time that the output holds it.")
    no_repeat_ngram_size: int = option(0, "No n tokens in a row come twice.", default=MODELS)
    encoder_repetition_penalty: float = option(
        1.0, "Above 1: the input's tokens count more, of a decoder its prompt's.", default=MODELS
    )
    encoder_no_repeat_ngram_size: int = option(0, "No n tokens in a row of the input come.", default=MODELS)
    bad_words: tuple[str, ...] = option((), "A word or string that is not written, with a space before it or not.")
    bad_words_ids: tuple[tuple[int, ...], ...] = ()  # each word's tokens
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] = ()  # added to a last token's logit after the others
    logit_bias: tuple[tuple[int, float], ...] = option(
        (), "Added to the logits of these token ids, -100 to 100: 13=-100,20=2.5.", read=read_logit_bias
    )
    allowed_token_ids: tuple[int, ...] = option((), "The id of a token that may come; no others do.")
    suppress_tokens: tuple[int, ...] = option((), "The id of a token that never comes.", default=MODELS)
    begin_suppress_tokens: tuple[int, ...] = option((), "The id of one that does not come first.", default=MODELS)
    exponential_decay_length_penalty: tuple[int, float] | None = None  # ends get likelier: after n tokens, by a factor
    remove_invalid_values: bool = False  # NaN and infinite logits become finite
    renormalize_logits: bool = option(
        False, "Of beams: chances add up to 1 again after penalties and prohibitions.", default=MODELS
    )
    min_new_tokens: int = option(0, "No end before so many.", default=MODELS)
    min_length: int = option(0, "The same with the prompt's.", default=MODELS)
    seed: int | None = option(None, "Makes drawing repeatable.", default="drawn at random")
    top_p_decay: float = option(1.0, "With each token --top-p shrinks by this factor (factual nucleus).")
    top_p_min: float = option(0.0, "… to no less than this,")
    top_p_reset_id: int | None = option(None, "… and is as at the start after the token of this id.")
    stop_token_ids: tuple[int, ...] = option((), "The id of a token that ends the output.")
    stop: tuple[str, ...] = option((), "A string that ends the output and is left out of its text.")
    include_stop_str_in_output: bool = option(False, "Leave the string of --stop in the text.")
    skip_special_tokens: bool = True  # in texts: the end token and its kin
    stop_words_ids: tuple[tuple[int, ...], ...] = ()  # token sequences that end the output
    top_logprobs: int = option(0, "Log-probabilities of so many likeliest tokens at each place, in JSON.")
    return_context_logits: bool = False  # of every token of a decoder's prompt
    return_generation_logits: bool = False  # that each token was chosen from, before penalties and prohibitions
    forced_bos_token_id: int | None = option(
        None, "The id of the output's first token (mBART-50: the target's language).", default=MODELS
    )
    forced_eos_token_id: int | tuple[int, ...] | None = option(
        None, "The id of the last one, at full length; several, of which one must come: 2,5.", default=MODELS,
        read=read_ids,
    )  # fmt: skip
    ignore_eos: bool = option(False, "Go on after the end token, up to the full length.")
    num_beams: int = option(1, "Above 1: beam search of this width.", default=MODELS)
    num_return_sequences: int = option(1, "Outputs of each input: the best beams, or so many samples.", default=MODELS)
    length_penalty: float = option(  # beams are ranked by sum of log-probabilities / length ** length_penalty
        1.0, "Of beams: above 0 favours long outputs.", default=MODELS
    )
    early_stopping: bool | str = option(
        False, "Of beams: true ends with as many outcomes as beams, false when none is likely to do better, never when"
        " none can.", default=MODELS, read=read_early_stopping,
    )  # fmt: skip
    diversity_rate: float = option(
        0.0, "Each rank among the continuations of one beam costs so much.", flag="--beam-search-diversity-rate"
    )
    loop_detection: bool = False

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def controlled(self) -> bool:
        """Does anything but temperature and the filters of a draw shape the choice?"""
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        lengths = self.min_new_tokens or self.min_length or self.exponential_decay_length_penalty
        return penalties != (1.0, 0.0, 0.0) or bool(
            self.no_repeat_ngram_size or lengths or self.names_tokens or self.remove_invalid_values
        )

    @cached_property
    def forced_tokens(self) -> frozenset[int]:
        """Returns the tokens that an output may be made to begin or end with."""
        last = self.forced_eos_token_id
        ends = last if isinstance(last, tuple) else (last,)
        return frozenset(token for token in (self.forced_bos_token_id, *ends) if token is not None)

    @cached_property
    def returns_logits(self) -> bool:
        # the prompt's last token is that of the first step
        return self.return_generation_logits or self.return_context_logits

    @cached_property
    def names_tokens(self) -> bool:
        """Are there rules about certain tokens or sequences of them?"""
        several_ends = isinstance(self.forced_eos_token_id, tuple)
        of_prompt = self.encoder_repetition_penalty != 1.0 or self.encoder_no_repeat_ngram_size
        named = self.bad_words_ids or self.suppress_tokens or self.begin_suppress_tokens or self.allowed_token_ids
        return bool(named or self.sequence_bias or self.logit_bias or several_ends or of_prompt)

    @cached_property
    def ends_beams(self) -> bool:
        """Says whether sequences of tokens end a beam; those of a single sequence are found by the host."""
        return self.num_beams > 1 and bool(self.stop_words_ids)

    @cached_property
    def rare(self) -> bool:
        """Are there settings that change the logits last of all?"""
        return bool(self.exponential_decay_length_penalty or self.remove_invalid_values or self.renormalize_logits)

    @cached_property
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
    first_scheduled_time: float = 0.0  # time.perf_counter() when it first left the queue
    image_token_id: int | None = None  # what logits processors see of an image's rows,
    first_image_row: int = 0  # … whose ids begin here
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
    def finished(self) -> bool:
        return bool(self.finish_reason)


@dataclass(frozen=True)
class Update:
    """What a burst brought for one sequence."""

    sequence: Sequence
    new_token_ids: tuple[int, ...]
    finished: bool  # by this burst; the sequence itself may have moved on since
