"""How an output is chosen: the settings of a request, under the names that Hugging Face and OpenAI give them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from vlm.errors import InputError
from vlm.options import option
from vlm.requests.sampling_checks import check

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
    order, whose names and meanings they have (`vlm.ops.logits_processors`, then `vlm.ops.sample`)."""

    max_new_tokens: int | None = option(
        None, "Tokens to generate at most.", default="the model's, or as many as the engine holds"
    )
    max_length: int | None = option(
        None, "The same with the prompt's; --max-new-tokens comes before it.", default="the model's"
    )
    default_max_new_tokens: int | None = None  # a model's own limit: so many, or as many as the engine holds
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
    def needs_processors(self) -> bool:
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
