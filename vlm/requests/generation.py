"""A model's own generation settings (generation_config.json) as its requests' defaults, as Hugging Face has it."""

from __future__ import annotations

import warnings
from typing import Any

from vlm.errors import InputError, listed
from vlm.requests.sampling_params import SamplingParams

SAME_NAME = (
    "bad_words_ids",
    "begin_suppress_tokens",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "length_penalty",
    "max_length",
    "min_length",
    "min_new_tokens",
    "no_repeat_ngram_size",
    "num_beams",
    "num_return_sequences",
    "remove_invalid_values",
    "renormalize_logits",
    "repetition_penalty",
    "sequence_bias",
    "suppress_tokens",
)
# of a draw; a model that does not sample has them for those who do
DRAWN = ("temperature", "top_h", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
SAMPLED = {"temperature": 1.0, "top_k": 50}  # Hugging Face's own where a model samples and does not say
# what is not done -> the values that ask for nothing
NOT_APPLIED = {
    "max_time": (),
    "guidance_scale": (1,),
    "watermarking_config": (),
    "token_healing": (False,),
    "num_beam_groups": (0, 1),
    "diversity_penalty": (0,),
    "penalty_alpha": (0,),
    "dola_layers": (),
    "constraints": (),
    "force_words_ids": (),
    "assistant_early_exit": (),
}
# names of Hugging Face's generate that are not fields of SamplingParams
OTHER_NAMES = ("do_sample", "stop_strings", "eos_token_id")


def model_defaults(generation: dict[str, Any], do_sample: bool | None = None) -> dict[str, Any]:
    """Returns the fields of SamplingParams that the model sets; `do_sample` where a request says so."""
    found = {name: value for name in SAME_NAME if (value := generation.get(name)) is not None}
    if generation.get("stop_strings"):
        found["stop"] = _strings(generation["stop_strings"])
    if generation.get("max_new_tokens") is not None:
        found["default_max_new_tokens"] = generation["max_new_tokens"]
        found.pop("max_length", None)
    if "min_new_tokens" in found:
        found.pop("min_length", None)
    sampled = generation.get("do_sample") is True and found.get("num_beams", 1) == 1 if do_sample is None else do_sample
    found |= SAMPLED | _drawn(generation) if sampled else {}
    if found.get("num_return_sequences", 1) > found.get("num_beams", 1) and not sampled:
        del found["num_return_sequences"]
    if found.get("num_beams", 1) > 1:
        found.pop("stop", None)
    return found


def _drawn(generation: dict[str, Any]) -> dict[str, Any]:
    return {name: generation[name] for name in DRAWN if generation.get(name) is not None}


def check_options(names: Any, others: tuple[str, ...] = ()) -> None:
    """Raises InputError for names that are no options; `others` are allowed, too."""
    known = (*others, *SamplingParams.__dataclass_fields__, *OTHER_NAMES)
    if unknown := [name for name in names if name not in known]:
        what = "option" if others else "sampling option"
        raise InputError(f"{listed(unknown)} is no {what}; options are {listed(known, 80)}.")


def sampling_params(given: dict[str, Any], generation: dict[str, Any], *, loop_detection: bool) -> SamplingParams:
    """What a caller gives, over what the model sets. A default gives way where it contradicts what is given.

    Raises InputError for an unknown or impossible option.
    """
    check_options(given)
    do_sample, given = given.get("do_sample"), _renamed(given)
    defaults = model_defaults(generation, do_sample)
    given = {name: value for name, value in given.items() if value is not None or name not in defaults}
    _give_way(defaults, given, generation, do_sample)
    merged = {**defaults, **given}
    if do_sample is False:
        merged["temperature"] = 0.0
    if merged.get("loop_detection") is None:
        merged["loop_detection"] = loop_detection and merged.get("num_beams", 1) == 1
    return SamplingParams(**{name: _frozen(name, value) for name, value in merged.items()})


def _renamed(given: dict[str, Any]) -> dict[str, Any]:
    """Names of Hugging Face's generate -> ours."""
    found = {name: value for name, value in given.items() if name not in OTHER_NAMES}
    if given.get("stop_strings") is not None:
        found["stop"] = (*(found.get("stop") or ()), *_strings(given["stop_strings"]))
    if (ends := given.get("eos_token_id")) is not None:
        ends = tuple(ends) if isinstance(ends, list | tuple) else (ends,)
        found |= {"stop_token_ids": (*(found.get("stop_token_ids") or ()), *ends), "ignore_eos": True}
    return found


def _give_way(
    defaults: dict[str, Any], given: dict[str, Any], generation: dict[str, Any], do_sample: bool | None
) -> None:
    """Drops what the model sets and the request excludes."""
    drop = lambda *names: [defaults.pop(name, None) for name in names]  # noqa: E731
    if given.get("temperature") or do_sample:
        drop("num_beams")
        defaults |= {name: value for name, value in _drawn(generation).items() if name not in defaults}
    elif given.get("num_beams", 1) > 1 or given.get("temperature") == 0:
        drop(*DRAWN)
    beams = given.get("num_beams", defaults.get("num_beams", 1))
    sampled = given.get("temperature", defaults.get("temperature", 0.0)) > 0
    if defaults.get("num_return_sequences", 1) > beams and not sampled:
        drop("num_return_sequences")
    if beams > 1:
        drop("stop")
    if given.get("max_length") is not None:
        drop("default_max_new_tokens")
    if given.get("min_new_tokens") is not None:
        drop("min_length")
    if (most := given.get("max_new_tokens")) is not None:
        drop("max_length", "default_max_new_tokens")
        defaults["min_new_tokens"] = min(defaults.get("min_new_tokens", 0), most)


def _strings(value: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _frozen(name: str, value: Any) -> Any:
    """Lists as tuples, at every depth, and what has two forms in the one of SamplingParams."""
    if name == "sequence_bias":
        pairs = value.items() if isinstance(value, dict) else value or ()
        return tuple((tuple(tokens), float(bias)) for tokens, bias in pairs)
    if name == "logit_bias":
        return _biases(value)
    if name == "forced_eos_token_id" and isinstance(value, list | tuple):
        ends = tuple(dict.fromkeys(value))
        return ends if len(ends) > 1 else ends[0] if ends else None
    return tuple(_frozen("", x) for x in value) if isinstance(value, list | tuple) else value


def _biases(value: Any) -> tuple[tuple[int, float], ...]:
    pairs = value.items() if isinstance(value, dict) else value or ()
    try:
        return tuple((int(token), float(bias)) for token, bias in pairs)
    except (TypeError, ValueError):
        raise InputError("logit_bias must map token ids to what is added to their logits, say {13: -100}.") from None


def warn_of_what_is_not_applied(name: str, generation: dict[str, Any]) -> None:
    """Says which of the model's settings have no effect."""
    left = [
        f"{n} {generation[n]}" for n, neutral in NOT_APPLIED.items() if generation.get(n) not in (None, [], *neutral)
    ]
    defaults = model_defaults(generation)
    beams = defaults.get("num_beams", 1) > 1
    if generation.get("do_sample") is True and beams:
        left.append("do_sample True of beams")
    if generation.get("stop_strings") and beams:
        left.append(f"stop_strings {generation['stop_strings']} of beams")
    if (count := generation.get("num_return_sequences") or 1) > 1 and "num_return_sequences" not in defaults:
        left.append(f"num_return_sequences {count} of a greedy choice")
    if left:
        warnings.warn(
            f"{name}: the model's generation settings {listed(left)} are not applied; decoding is as its options say.",
            stacklevel=4,
        )
