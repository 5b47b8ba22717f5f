"""Values of sampling settings: how they are read from words, which forms of one mean the same, which are refused."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Sequence
from typing import Any

from vlm.errors import InputError
from vlm.limits import MAX_LOGIT_BIAS, MAX_STOP_CHARACTERS

EARLY_STOPPING = {"true": True, "false": False, "never": "never"}
_seeds = random.Random()  # begun by the system's own, in a forked process as well
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_seeds.seed)


# --- the command line's words ---
def read_early_stopping(text: str) -> bool | str:
    """Reads true, false or never. InputError for anything else."""
    if text.lower() not in EARLY_STOPPING:
        said = f"early_stopping is {text!r}; it must be true, false or never."
        raise InputError(said, settings=("early_stopping",))
    return EARLY_STOPPING[text.lower()]


def read_ids(text: str) -> tuple[int, ...] | int:
    """Reads a token's id, or several with commas between them. InputError for anything else."""
    try:
        ids = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"the token ids are {text!r}; give numbers with commas between them, say 2,5.") from None
    first, *others = ids
    return ids if others else first


def read_logit_bias(text: str) -> tuple[tuple[int, float], ...]:
    """Reads 13=-100,20=2.5: what is added to the logits of tokens. InputError for anything else."""
    try:
        pairs = [part.split("=") for part in text.split(",")]
        return tuple((int(token), float(value)) for token, value in pairs)
    except ValueError:
        raise InputError(
            f"logit_bias is {text!r}; write token ids and what is added to them, say 13=-100.", settings=("logit_bias",)
        ) from None


# --- forms that callers give ---
def to_strings(value: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Returns one string or several as a tuple."""
    return (value,) if isinstance(value, str) else tuple(value)


def to_ends(value: int | list[int] | tuple[int, ...] | None) -> tuple[int, ...] | int | None:
    """Returns token ids of which one must come: a single one as it is, none as None."""
    if not isinstance(value, list | tuple):
        return value
    ends = tuple(dict.fromkeys(value))
    return ends if len(ends) > 1 else ends[0] if ends else None


def to_sequence_bias(value: Any) -> tuple[tuple[tuple[int, ...], float], ...]:
    """Returns pairs of a mapping, or of a list, of token sequences and what is added to their last token's logit."""
    pairs = value.items() if isinstance(value, dict) else value or ()
    return tuple((tuple(tokens), float(bias)) for tokens, bias in pairs)


def to_logit_bias(value: Any) -> tuple[tuple[int, float], ...]:
    """Returns pairs of a mapping, or of a list, of token ids and what is added to their logits. InputError for what
    is neither."""
    pairs = value.items() if isinstance(value, dict) else value or ()
    try:
        return tuple((int(token), float(bias)) for token, bias in pairs)
    except (TypeError, ValueError):
        raise InputError("logit_bias must map token ids to what is added to their logits, say {13: -100}.") from None


def to_seed(value: int) -> int:
    """Returns a seed of any size as one of 63 bits."""
    return value % 2**63


def draw_seed() -> int:
    """Returns a seed for what names none, which clients read without loss that have floats alone (JavaScript, jq). The
    system is asked once: each time would let other threads go first."""
    return _seeds.getrandbits(52)


# --- what is refused ---
def check_stop(words: tuple[str, ...]) -> None:
    """Raises InputError for stop strings of which one is empty or too long."""
    _check_full(words)
    _check_short(words)


def _check_full(words: tuple[Any, ...]) -> None:
    """Raises InputError for stop words of which one is empty."""
    if not all(words):
        raise InputError("a stop string or word is empty; leave it out.")


def check_stop_ids(words: tuple[tuple[int, ...], ...]) -> None:
    """Raises InputError for stop words of which one is empty, or has a token that no vocabulary has."""
    _check_full(words)
    check_ids([token for word in words for token in word])


def check_ids(tokens: Sequence[int]) -> None:
    """Raises InputError for a token that no vocabulary has: ids have 32 bits."""
    if wide := [token for token in tokens if not -(2**31) <= token < 2**31]:
        raise InputError(f"the token id {wide[0]} is that of no vocabulary; leave it out.")


def check_bad_words(words: tuple[str, ...]) -> None:
    """Raises InputError for words of which one is blank or too long."""
    _check_short(words)
    if not all(word.strip() for word in words):
        raise InputError("a bad word is blank; leave it out.")


def check_bad_words_ids(words: tuple[tuple[int, ...], ...]) -> None:
    """Raises InputError for a word without tokens."""
    if not all(words):
        raise InputError("bad_words_ids has a word without tokens; leave it out.")


def check_sequence_bias(pairs: tuple[tuple[tuple[int, ...], float], ...]) -> None:
    """Raises InputError for a sequence without tokens, and for a bias that is no number; -inf forbids."""
    for tokens, bias in pairs:
        if not tokens:
            raise InputError("sequence_bias has a sequence without tokens; leave it out.")
        if not bias < math.inf:
            raise InputError(f"sequence_bias of {list(tokens)} is {bias:g}; it must be a number, or -inf to forbid.")


def check_logit_bias(pairs: tuple[tuple[int, float], ...]) -> None:
    """Raises InputError for a bias beyond OpenAI's."""
    if wide := [pair for pair in pairs if not -MAX_LOGIT_BIAS <= pair[1] <= MAX_LOGIT_BIAS]:
        token, value = wide[0]
        raise InputError(
            f"logit_bias of token {token} is {value:g}; it must lie in [-{MAX_LOGIT_BIAS:g}, {MAX_LOGIT_BIAS:g}]."
        )


def check_length_decay(decay: tuple[int, float] | None) -> None:
    """Raises InputError for what is no number of tokens and a positive factor."""
    if decay is not None and not (len(decay) == 2 and decay[0] >= 0 and 0.0 < decay[1] < float("inf")):
        raise InputError(
            f"exponential_decay_length_penalty is {decay}; it must be a number of tokens and a positive factor."
        )


def _check_short(words: tuple[str, ...]) -> None:
    if long := [word for word in words if len(word) > MAX_STOP_CHARACTERS]:
        raise InputError(
            f"the stop string or bad word {long[0][:20]!r}… has {len(long[0]):,} characters; it may have"
            f" {MAX_STOP_CHARACTERS}."
        )
