"""Which values a request's settings may take: one sentence says what was given and what is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlm.errors import InputError
from vlm.limits import MAX_LOGIT_BIAS, MAX_STOP_CHARACTERS, MAX_TOP_LOGPROBS

if TYPE_CHECKING:
    from vlm.requests.sampling_params import SamplingParams

# name -> (lowest, highest, what else is to be said); both ends are allowed
RANGES = {
    "min_p": (0.0, 1.0, ""),
    "presence_penalty": (-100.0, 100.0, ", 0 is none"),
    "frequency_penalty": (-100.0, 100.0, ", 0 is none"),
    "length_penalty": (-100.0, 100.0, ""),
    "diversity_rate": (0.0, 100.0, ""),
    "top_logprobs": (0, MAX_TOP_LOGPROBS, ""),
    "top_h": (0.0, 1.0, ", 0 is off"),
    "epsilon_cutoff": (0.0, 1.0, ", 0 is off"),
    "eta_cutoff": (0.0, 1.0, ", 0 is off"),
}
# name -> what comes after the highest value; the lowest is 0
COUNTS = {"top_k": 31, "no_repeat_ngram_size": 30, "encoder_no_repeat_ngram_size": 30, "min_new_tokens": 30,
          "min_length": 30, "seed": 63}  # fmt: skip
POSITIVE = ("repetition_penalty", "encoder_repetition_penalty")
PARTS = ("top_p", "typical_p")


def check(params: SamplingParams) -> None:
    """Raises InputError for the first value that is not allowed."""
    _check_lengths(params)
    _check_numbers(params)
    _check_tokens(params)
    _check_beams(params)


def _check_numbers(params: SamplingParams) -> None:
    value_of = lambda name: getattr(params, name)  # noqa: E731
    if not 0.0 <= params.temperature < float("inf"):
        raise InputError(f"temperature is {params.temperature}; it must be 0 (greedy) or a positive number.")
    if not 0.0 < params.top_p_decay <= 1.0 or not 0.0 <= params.top_p_min <= 1.0:
        raise InputError("top_p_decay must lie in (0, 1] and top_p_min in [0, 1].")
    for name in PARTS:
        if not 0.0 < value_of(name) <= 1.0:
            raise InputError(f"{name} is {value_of(name)}; it must lie in (0, 1].")
    for name in POSITIVE:
        if not 0.0 < value_of(name) < float("inf"):
            raise InputError(f"{name} is {value_of(name)}; it must be positive, 1 is none.")
    for name, (low, high, more) in RANGES.items():
        if not low <= value_of(name) <= high:
            raise InputError(f"{name} is {value_of(name)}; it must lie in [{low:g}, {high:g}]{more}.")
    for name, bits in COUNTS.items():
        if value_of(name) is not None and not 0 <= value_of(name) < 2**bits:
            raise InputError(f"{name} is {value_of(name)}; it must lie in [0, 2^{bits}).")


def _check_lengths(params: SamplingParams) -> None:
    most = params.max_new_tokens
    if most is not None and most < 1:
        raise InputError(f"max_new_tokens is {most}; it must be at least 1.")
    if most is not None and params.min_new_tokens > most:
        raise InputError(f"min_new_tokens {params.min_new_tokens} is more than max_new_tokens {most}; lower it.")


def _check_tokens(params: SamplingParams) -> None:
    if not all(params.stop) or not all(params.stop_words_ids):
        raise InputError("a stop string or word is empty; leave it out.")
    if long := [word for word in (*params.stop, *params.bad_words) if len(word) > MAX_STOP_CHARACTERS]:
        raise InputError(
            f"the stop string or bad word {long[0][:20]!r}… has {len(long[0]):,} characters; it may have"
            f" {MAX_STOP_CHARACTERS}."
        )
    if not all(word.strip() for word in params.bad_words):
        raise InputError("a bad word is empty; leave it out.")
    if not all(params.bad_words_ids):
        raise InputError("bad_words_ids has a word without tokens; leave it out.")
    if not all(tokens for tokens, _ in params.sequence_bias):
        raise InputError("sequence_bias has a sequence without tokens; leave it out.")
    if wide := [pair for pair in params.logit_bias if not -MAX_LOGIT_BIAS <= pair[1] <= MAX_LOGIT_BIAS]:
        token, value = wide[0]
        raise InputError(
            f"logit_bias of token {token} is {value:g}; it must lie in [-{MAX_LOGIT_BIAS:g}, {MAX_LOGIT_BIAS:g}]."
        )
    decay = params.exponential_decay_length_penalty
    if decay is not None and not (len(decay) == 2 and decay[0] >= 0 and 0.0 < decay[1] < float("inf")):
        raise InputError(
            f"exponential_decay_length_penalty is {decay}; it must be a number of tokens and a positive factor."
        )


def _check_beams(params: SamplingParams) -> None:
    if params.num_beams < 1 or params.num_return_sequences < 1:
        raise InputError("num_beams and num_return_sequences must be at least 1.")
    if params.num_beams > 1 and params.temperature > 0:
        raise InputError("num_beams above 1 and a temperature exclude each other: beam search does not sample.")
    if params.num_return_sequences > params.num_beams and params.temperature == 0:
        raise InputError(
            f"num_return_sequences is {params.num_return_sequences}: give at least as many num_beams (now"
            f" {params.num_beams}), or a temperature, to get different outputs."
        )
    if params.early_stopping not in (False, True, "never"):
        raise InputError(f"early_stopping is {params.early_stopping!r}; it must be False, True or 'never'.")
    if params.num_beams > 1 and params.stop:
        raise InputError(
            "stop strings are for single sequences: set num_beams to 1, or give the stop words' tokens as"
            " stop_words_ids, which end beams, too."
        )
    if params.num_beams > 1 and params.top_logprobs:
        raise InputError("top_logprobs are for single sequences: set num_beams to 1.")
    if params.num_beams > 1 and params.returns_logits:
        raise InputError("context and generation logits are those of single sequences: set num_beams to 1.")
    if params.num_beams > 1 and params.loop_detection:
        raise InputError("loop detection works on one sequence; switch it off for beam search.")
