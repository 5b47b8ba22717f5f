"""A model's own generation settings (generation_config.json) as its requests' defaults, as Hugging Face has it."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from typing import Any

from vlm.errors import InputError, VlmWarning, listed, meant, shown
from vlm.options import check_values, converted, options_of
from vlm.requests.sampling_params import SamplingParams

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
WHOLE = ("sampling_params", "params", "generation_config")  # of other libraries: all settings in one object


@functools.cache
def model_keys(*, drawn: bool) -> dict[str, str]:
    """Returns the keys of generation_config.json by the fields that they set: those of a draw, or the others. A model
    that does not sample has those of a draw for requests that do."""
    options = options_of(SamplingParams).items()
    return {name: own.model_key for name, own in options if own.model_key is not None and own.drawn == drawn}


def model_defaults(generation: dict[str, Any], do_sample: bool | None = None) -> dict[str, Any]:
    """Returns the fields of SamplingParams that the model sets; `do_sample` where a request says so."""
    defaults = _settings(generation, drawn=False)
    if "default_max_new_tokens" in defaults:
        defaults.pop("max_length", None)
    if "min_new_tokens" in defaults:
        defaults.pop("min_length", None)
    samples = (
        generation.get("do_sample") is True and defaults.get("num_beams", 1) == 1 if do_sample is None else do_sample
    )
    defaults |= SAMPLED | _settings(generation, drawn=True) if samples else {}
    if defaults.get("num_return_sequences", 1) > defaults.get("num_beams", 1) and not samples:
        del defaults["num_return_sequences"]
    if defaults.get("num_beams", 1) > 1:
        defaults.pop("stop", None)
    return defaults


def _settings(generation: dict[str, Any], *, drawn: bool) -> dict[str, Any]:
    """Returns the fields that a generation_config.json sets, of a draw or others. Raises InputError for what is not
    allowed; of a draw it may be, where nothing is drawn."""
    keys = model_keys(drawn=drawn)
    settings = {name: generation[key] for name, key in keys.items() if generation.get(key) is not None}
    try:
        found = converted(SamplingParams, settings)
        if not drawn:
            check_values(SamplingParams, found)
    except InputError as error:
        raise _of_model(error, keys) from None
    return found


def _of_model(error: InputError, keys: Mapping[str, str]) -> InputError:
    """Returns an error of settings that the model has itself, by their names there."""
    reason = functools.reduce(lambda text, name: text.replace(name, keys[name]), error.settings, str(error))
    return InputError(f"the model's own generation settings cannot be used: {reason}")


def check_options(names: Any, others: tuple[str, ...] = ()) -> None:
    """Raises InputError for names that are no options; `others` are allowed, too."""
    options = _options(others)
    if unknown := [name for name in names if name not in options]:
        if whole := [name for name in unknown if name in WHOLE]:
            raise InputError(f"{listed(whole)} is no option: give each setting by its name, as max_new_tokens=20.")
        what = "option" if others else "sampling option"
        raise InputError(
            f"{listed(unknown)} is no {what}{meant(str(unknown[0]), options)}; options are {listed([*options], 80)}."
        )


@functools.cache
def _options(others: tuple[str, ...]) -> dict[str, None]:
    """Returns the names of all options, in their order."""
    return dict.fromkeys((*others, *SamplingParams.__dataclass_fields__, *OTHER_NAMES))


def sampling_params(request: Mapping[str, Any], generation: dict[str, Any], *, loop_detection: bool) -> SamplingParams:
    """Returns what a request says, over what the model sets. A default gives way where the request contradicts it.

    Raises InputError for an unknown or impossible option.
    """
    check_options(request)
    do_sample, settings = request.get("do_sample"), _renamed(request)
    if do_sample not in (None, False, True):  # a text is true, whatever it says
        raise InputError(f"do_sample is {shown(do_sample)}; it must be true or false.", settings=("do_sample",))
    defaults = model_defaults(generation, do_sample)
    _settle_choice(defaults, settings, generation, do_sample=do_sample)
    _settle_lengths(defaults, settings)
    values = {**defaults, **settings}
    if do_sample is False:
        values["temperature"] = 0.0
    if values.get("loop_detection") is None:
        values["loop_detection"] = loop_detection and values.get("num_beams", 1) == 1
    try:
        return SamplingParams(**values)
    except InputError as error:
        every = model_keys(drawn=True) | model_keys(drawn=False)
        keys = {name: key for name, key in every.items() if name not in settings}
        if not error.settings or not keys.keys() >= set(error.settings):
            raise
        raise _of_model(error, keys) from None


def without_effect(request: Mapping[str, Any], generation: dict[str, Any]) -> dict[str, list[str]]:
    """Returns the settings of a request that nothing comes of, by the setting that they go with, which neither the
    request nor the model gives. InputError as of `sampling_params`."""
    params, plain = sampling_params(request, generation, loop_detection=False), SamplingParams()
    found: dict[str, list[str]] = {}
    for name, needed in ((name, own.only_with) for name, own in options_of(SamplingParams).items()):
        if needed is None or request.get(name) in (None, getattr(plain, name)):
            continue
        if getattr(params, needed) == getattr(plain, needed):
            found.setdefault(needed, []).append(name)
    return found


def _renamed(request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that a request has, with the names of Hugging Face's generate as ours."""
    said = {name: value for name, value in request.items() if name not in OTHER_NAMES and value is not None}
    settings = converted(SamplingParams, said)
    if (words := request.get("stop_strings")) is not None:
        words = converted(SamplingParams, {"stop": words})["stop"]
        settings["stop"] = (*settings.get("stop", ()), *words)
    if (ends := request.get("eos_token_id")) is not None:
        ends = converted(SamplingParams, {"stop_token_ids": ends if isinstance(ends, list | tuple) else [ends]})
        ids = (*settings.get("stop_token_ids", ()), *ends["stop_token_ids"])
        settings |= {"stop_token_ids": ids, "ignore_eos": True}
    return settings


def _settle_choice(
    defaults: dict[str, Any], settings: dict[str, Any], generation: dict[str, Any], *, do_sample: bool | None
) -> None:
    """Drops of the model's defaults the beams of a request that draws, and the draws of one that does not."""
    if settings.get("temperature") or do_sample:
        _drop(defaults, "num_beams")
        defaults |= {name: value for name, value in _settings(generation, drawn=True).items() if name not in defaults}
    elif settings.get("num_beams", 1) > 1 or settings.get("temperature") == 0:
        _drop(defaults, *model_keys(drawn=True))
    beams = settings.get("num_beams", defaults.get("num_beams", 1))
    samples = settings.get("temperature", defaults.get("temperature", 0.0)) > 0
    if defaults.get("num_return_sequences", 1) > beams and not samples:
        _drop(defaults, "num_return_sequences")
    if beams > 1:
        _drop(defaults, "stop")


def _settle_lengths(defaults: dict[str, Any], settings: dict[str, Any]) -> None:
    """Drops of the model's lengths those that the request says in another way, and of its own the one that gives way
    to another."""
    if settings.get("max_length") is not None:
        _drop(defaults, "default_max_new_tokens")
    if settings.get("min_new_tokens") is not None:
        _drop(defaults, "min_length")
        _drop(settings, "min_length")
    if (most := settings.get("max_new_tokens")) is not None:
        _drop(defaults, "max_length", "default_max_new_tokens")
        defaults["min_new_tokens"] = min(defaults.get("min_new_tokens", 0), most)


def _drop(defaults: dict[str, Any], *names: str) -> None:
    for name in names:
        defaults.pop(name, None)


def warn_of_what_is_not_applied(name: str, generation: dict[str, Any]) -> None:
    """Says which of the model's settings have no effect."""
    settings = [
        f"{n} {generation[n]}" for n, neutral in NOT_APPLIED.items() if generation.get(n) not in (None, [], *neutral)
    ]
    defaults = model_defaults(generation)
    beams = defaults.get("num_beams", 1) > 1
    if generation.get("do_sample") is True and beams:
        settings.append("do_sample True of beams")
    if generation.get("stop_strings") and beams:
        settings.append(f"stop_strings {generation['stop_strings']} of beams")
    if (count := generation.get("num_return_sequences") or 1) > 1 and "num_return_sequences" not in defaults:
        settings.append(f"num_return_sequences {count} of a greedy choice")
    if settings:
        warnings.warn(
            f"{name}: the model's generation settings {listed(settings)} are not applied; decoding is as its options"
            " say.",
            VlmWarning,
            stacklevel=4,
        )
