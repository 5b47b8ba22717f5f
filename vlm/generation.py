"""A model's own generation settings (generation_config.json) as its requests' defaults, as Hugging Face has it."""

from __future__ import annotations

import warnings
from typing import Any

from vlm.errors import InputError, listed
from vlm.runtime.request import SamplingParams

SAME_NAME = (
    "repetition_penalty",
    "no_repeat_ngram_size",
    "bad_words_ids",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "num_beams",
    "length_penalty",
    "early_stopping",
    "max_length",
    "min_new_tokens",
)
# what is not done -> the values that ask for nothing
NOT_APPLIED = {"do_sample": (False,), "suppress_tokens": (), "begin_suppress_tokens": ()}
LISTS = ("stop_token_ids", "bad_words_ids")


def model_defaults(generation: dict[str, Any]) -> dict[str, Any]:
    """Fields of SamplingParams that the model sets."""
    found = {name: value for name in SAME_NAME if (value := generation.get(name)) is not None}
    for name in ("forced_bos_token_id", "forced_eos_token_id"):
        if isinstance(found.get(name), list):
            found[name] = found[name][0]
    if generation.get("max_new_tokens") is not None:
        found["usual_new_tokens"] = generation["max_new_tokens"]
        found.pop("max_length", None)
    # lengths count the start token
    if generation.get("min_length") and "min_new_tokens" not in found:
        found["min_new_tokens"] = generation["min_length"] - 1
    return found


def sampling_params(given: dict[str, Any], generation: dict[str, Any], *, loop_detection: bool) -> SamplingParams:
    """What a caller gives, over what the model sets. A default gives way where it contradicts what is given.

    Raises InputError for an unknown or impossible option.
    """
    known = SamplingParams.__dataclass_fields__
    if unknown := [name for name in given if name not in known]:
        raise InputError(f"{listed(unknown)} is no sampling option; options are {listed(known, 60)}.")
    defaults = model_defaults(generation)
    given = {name: value for name, value in given.items() if value is not None or name not in defaults}
    if given.get("temperature"):
        defaults.pop("num_beams", None)
    most = given.get("max_new_tokens")
    if most is not None:
        defaults.pop("max_length", None)
        defaults.pop("usual_new_tokens", None)
        defaults["min_new_tokens"] = min(defaults.get("min_new_tokens", 0), most)
    merged = {**defaults, **given}
    if merged.get("loop_detection") is None:
        merged["loop_detection"] = loop_detection and merged.get("num_beams", 1) == 1
    for name in LISTS:
        if name in merged:
            merged[name] = tuple(tuple(x) if isinstance(x, list) else x for x in merged[name])
    return SamplingParams(**merged)


def warn_of_what_is_not_applied(name: str, generation: dict[str, Any]) -> None:
    """Says which of the model's settings have no effect."""
    left = [
        f"{n} {generation[n]}" for n, neutral in NOT_APPLIED.items() if generation.get(n) not in (None, [], *neutral)
    ]
    if left:
        warnings.warn(
            f"{name}: the model's generation settings {listed(left)} are not applied; decoding is as its options say.",
            stacklevel=4,
        )
