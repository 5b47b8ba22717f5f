"""What is asked (`Request`, immutable), how it is sampled, its scheduled state (`Sequence`), and what comes back."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from vlm.errors import InputError
from vlm.limits import MAX_NGRAM, MAX_STOP_IDS, MAX_TOP_LOGPROBS, MAX_WORD, MAX_WORDS
from vlm.options import option

if TYPE_CHECKING:
    from torch import Tensor

    from vlm.runtime.prompt_table import Image, PromptTable

FINISH_REASONS = ("", "stop", "loop", "length")  # by the device's finish code; 0 is running
MODELS = "the model's"  # what a model's generation_config.json may set
EARLY_STOPPING = {"true": True, "false": False, "never": "never"}


def read_early_stopping(text: str) -> bool | str:
    """Reads true, false or never. InputError for anything else."""
    if text.lower() not in EARLY_STOPPING:
        raise InputError(f"early_stopping is {text!r}; it must be true, false or never.")
    return EARLY_STOPPING[text.lower()]


@dataclass(frozen=True)
class SamplingParams:
    """Temperature 0 is greedy. The defaults switch every filter and penalty off; they follow Hugging Face's order
    (penalties and prohibitions, temperature, top-k, top-p, min-p)."""

    max_new_tokens: int | None = option(
        None, "Tokens to generate at most.", default="the model's, or as many as the engine holds"
    )
    max_length: int | None = option(
        None, "The same with the prompt's; --max-new-tokens comes before it.", default="the model's"
    )
    usual_new_tokens: int | None = None  # a model's own limit: so many, or as many as the engine holds
    temperature: float = option(0.0, "0 is greedy; above it tokens are drawn at random.")
    top_k: int = option(0, "Draw from the k likeliest; 0: all.")
    top_p: float = option(1.0, "Draw from the likeliest that make up p.")
    min_p: float = option(0.0, "Draw from those of at least p times the likeliest's chance.")
    repetition_penalty: float = option(1.0, "Above 1: tokens that stand there already count less.", default=MODELS)
    presence_penalty: float = option(0.0, "Taken off what the output holds.")
    frequency_penalty: float = option(0.0, "Taken off for each time that the output holds it.")
    no_repeat_ngram_size: int = option(0, "No n tokens in a row come twice.", default=MODELS)
    bad_words: tuple[str, ...] = option((), "A word or string that is not written, with a space before it or not.")
    bad_words_ids: tuple[tuple[int, ...], ...] = ()  # each word's tokens
    min_new_tokens: int = option(0, "No end before so many.", default=MODELS)
    seed: int | None = option(None, "Makes drawing repeatable.", default="drawn at random")
    top_p_decay: float = option(1.0, "With each token --top-p shrinks by this factor (factual nucleus).")
    top_p_min: float = option(0.0, "… to no less than this,")
    top_p_reset_id: int | None = option(None, "… and is as at the start after the token of this id.")
    stop_token_ids: tuple[int, ...] = option((), "The id of a token that ends the output.")
    stop: tuple[str, ...] = option((), "A string that ends the output and is left out of its text.")
    stop_words_ids: tuple[tuple[int, ...], ...] = ()  # token sequences that end the output
    top_logprobs: int = option(0, "Log-probabilities of so many likeliest tokens at each place, in JSON.")
    forced_bos_token_id: int | None = option(
        None, "The id of the output's first token (mBART-50: the target's language).", default=MODELS
    )
    forced_eos_token_id: int | None = option(None, "The id of the last one, at full length.", default=MODELS)
    ignore_eos: bool = option(False, "Go on after the end token, up to the full length.")
    num_beams: int = option(1, "Above 1: beam search of this width.", default=MODELS)
    num_return_sequences: int = option(1, "Outputs of each input: the best beams, or so many samples.")
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
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise InputError(f"max_new_tokens is {self.max_new_tokens}; it must be at least 1.")
        if not 0.0 <= self.temperature < float("inf"):
            raise InputError(f"temperature is {self.temperature}; it must be 0 (greedy) or a positive number.")
        if not 0.0 < self.top_p_decay <= 1.0 or not 0.0 <= self.top_p_min <= 1.0:
            raise InputError("top_p_decay must lie in (0, 1] and top_p_min in [0, 1].")
        if not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS:
            raise InputError(f"top_logprobs is {self.top_logprobs}; it must lie in [0, {MAX_TOP_LOGPROBS}].")
        if not all(self.stop) or not all(self.stop_words_ids):
            raise InputError("a stop string or word is empty; leave it out.")
        if not all(word.strip() for word in self.bad_words):
            raise InputError("a bad word is empty; leave it out.")
        if not 0 <= self.top_k < 2**31:
            raise InputError(f"top_k is {self.top_k}; it must lie in [0, 2^31), 0 is off.")
        if not 0.0 < self.top_p <= 1.0:
            raise InputError(f"top_p is {self.top_p}; it must lie in (0, 1].")
        if not 0.0 <= self.min_p <= 1.0:
            raise InputError(f"min_p is {self.min_p}; it must lie in [0, 1].")
        if not 0.0 < self.repetition_penalty < float("inf"):
            raise InputError(f"repetition_penalty is {self.repetition_penalty}; it must be positive, 1 is none.")
        for name in ("presence_penalty", "frequency_penalty"):
            if not -100.0 <= getattr(self, name) <= 100.0:
                raise InputError(f"{name} is {getattr(self, name)}; it must lie in [-100, 100], 0 is none.")
        if not 0 <= self.no_repeat_ngram_size <= MAX_NGRAM:
            raise InputError(f"no_repeat_ngram_size is {self.no_repeat_ngram_size}; it must lie in [0, {MAX_NGRAM}].")
        if len(self.bad_words_ids) > MAX_WORDS or not all(1 <= len(word) <= MAX_WORD for word in self.bad_words_ids):
            raise InputError(f"bad_words_ids takes up to {MAX_WORDS} words of 1 to {MAX_WORD} tokens each.")
        if not 0 <= self.min_new_tokens < 2**30:
            raise InputError(f"min_new_tokens is {self.min_new_tokens}; it must lie in [0, 2^30).")
        if self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            raise InputError(
                f"min_new_tokens {self.min_new_tokens} is more than max_new_tokens {self.max_new_tokens}; lower it."
            )
        self._check_beams()
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise InputError(f"seed is {self.seed}; it must lie in [0, 2^63).")
        if len(self.stop_token_ids) > MAX_STOP_IDS - 4:
            raise InputError(f"{len(self.stop_token_ids)} stop token ids were given; {MAX_STOP_IDS - 4} are allowed.")

    def _check_beams(self) -> None:
        if self.num_beams < 1 or self.num_return_sequences < 1:
            raise InputError("num_beams and num_return_sequences must be at least 1.")
        if self.num_beams > 1 and self.temperature > 0:
            raise InputError("num_beams above 1 and a temperature exclude each other: beam search does not sample.")
        if self.num_return_sequences > self.num_beams and self.temperature == 0:
            raise InputError(
                f"num_return_sequences is {self.num_return_sequences}: give at least as many num_beams (now"
                f" {self.num_beams}), or a temperature, to get different outputs."
            )
        if self.early_stopping not in (False, True, "never"):
            raise InputError(f"early_stopping is {self.early_stopping!r}; it must be False, True or 'never'.")
        if not -100.0 <= self.length_penalty <= 100.0:
            raise InputError(f"length_penalty is {self.length_penalty}; it must lie in [-100, 100].")
        if not 0.0 <= self.diversity_rate <= 100.0:
            raise InputError(f"diversity_rate is {self.diversity_rate}; it must lie in [0, 100].")
        if self.num_beams > 1 and (self.stop or self.stop_words_ids or self.top_logprobs):
            raise InputError("stop strings, stop words and top_logprobs are for single sequences: set num_beams to 1.")
        if self.num_beams > 1 and self.loop_detection:
            raise InputError("loop detection works on one sequence; switch it off for beam search.")

    @property
    def controlled(self) -> bool:
        """Does anything but temperature, top-k, top-p and min-p shape the choice?"""
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return penalties != (1.0, 0.0, 0.0) or bool(
            self.no_repeat_ngram_size or self.bad_words_ids or self.min_new_tokens
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
    image_token_id: int | None = None  # what logits processors see of an image's rows,
    first_image_row: int = 0  # … whose ids begin here
    preemptions: int = 0
    top_logprobs: list[dict[int, float]] = field(default_factory=list)
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
