"""The sampling settings in OpenAI's bodies: their fields, made of what the settings say of themselves."""

from __future__ import annotations

import typing
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from vlm.limits import MAX_LOGIT_BIAS, MAX_STOP_IDS, MAX_STOPS
from vlm.options import Offer, Option, options_of, without_none
from vlm.ranges import Choice, Range
from vlm.requests.sampling_params import SamplingParams
from vlm_app.server.core.setting_names import in_openai

Int32 = Annotated[int, Field(ge=0, lt=2**31)]
TokenId = Annotated[int, Field(strict=True, ge=0, lt=2**31)]  # true is none
Bias = Annotated[float, Field(ge=-MAX_LOGIT_BIAS, le=MAX_LOGIT_BIAS)]
Word = Annotated[str, Field(min_length=1, max_length=256)]


def _few(field: str, what: str, most: int) -> BeforeValidator:
    """Refuses too many of them at once: each wrong one would be an error of its own, or all would be none of another
    form."""

    def check(value: Any) -> Any:
        if isinstance(value, dict | list) and len(value) > most:
            raise ValueError(f"{field} has {len(value):,} {what}; give at most {most}.")
        return value

    return BeforeValidator(check)


# what JSON has in place of a setting's type
TYPES: dict[Any, Any] = {
    tuple[int, ...]: Annotated[list[TokenId], Field(max_length=MAX_STOP_IDS, fail_fast=True)],
    tuple[str, ...]: Annotated[list[Word], Field(max_length=MAX_STOP_IDS, fail_fast=True)],
    tuple[tuple[int, float], ...]: Annotated[dict[Int32, Bias], _few("logit_bias", "entries", MAX_STOP_IDS)],
}
# as OpenAI has it
STOPS = Annotated[list[str], Field(max_length=MAX_STOPS)]
STOP = Annotated[Annotated[str, Field(min_length=1)] | STOPS, _few("stop", "strings", MAX_STOPS)]


def offered(completions: bool) -> dict[str, tuple[str, Offer]]:
    """Returns (name in the body, how it is offered) of each setting that a route takes, /v1/completions or
    /v1/chat/completions."""
    names = in_openai(completions)
    offers = ((name, own.openai) for name, own in options_of(SamplingParams).items())
    return {name: (names[name], offer) for name, offer in offers if offer is not None}


def body_fields(completions: bool) -> dict[str, Any]:
    """Returns what pydantic makes a route's fields of: each may be left out."""
    hints, options = typing.get_type_hints(SamplingParams), options_of(SamplingParams)
    return {
        field: (_annotation(name, hints[name], options[name]) | None, None)
        for name, (field, _) in offered(completions).items()
    }


def settings_of(body: Any, completions: bool) -> dict[str, Any]:
    """Returns the settings that a body names."""
    values = {name: (getattr(body, field), offer.read) for name, (field, offer) in offered(completions).items()}
    return {name: read(value) if read else value for name, (value, read) in values.items() if value is not None}


def _annotation(name: str, hint: Any, option: Option) -> Any:
    if name == "stop":
        return STOP
    if isinstance(option.allowed, Choice):
        return _choice(option.allowed.values)
    kind = without_none(hint)
    if kind in TYPES:
        return TYPES[kind]
    limits = option.openai.allowed if option.openai and option.openai.allowed else option.allowed
    if not isinstance(limits, Range):
        return kind
    bounds: dict[str, Any] = _bounds(limits) | ({"allow_inf_nan": False} if kind is float else {})
    return Annotated[kind, Field(**bounds), BeforeValidator(no_truth)]


def no_truth(value: Any) -> Any:
    """Refuses true and false, which would be 1 and 0."""
    if isinstance(value, bool):
        raise PydanticCustomError("truth", "Input should be a number, not true or false")
    return value


def _choice(values: tuple[Any, ...]) -> Any:
    """Returns the type of a few words, or of these and true and false."""
    words = tuple(value for value in values if isinstance(value, str))
    return Literal[words] if len(words) == len(values) else bool | Literal[words]


def _bounds(limits: Range) -> dict[str, Any]:
    low = {} if limits.low == float("-inf") else {"gt" if limits.low_open else "ge": limits.low}
    high = {} if limits.high == float("inf") else {"lt" if limits.high_open else "le": limits.high}
    return {**low, **high}
