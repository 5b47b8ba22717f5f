"""The options of a pipeline's calls: fields of a single input, or settings of requests."""

from __future__ import annotations

from typing import Any

from vlm.errors import InputError, listed
from vlm.processing.inputs.fields import INPUT_KEYS
from vlm.requests.request import Request

FIELDS = frozenset(INPUT_KEYS) - {"lora"}  # which is an option of inputs that are given in any way


def many_settings(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of a call with a list of inputs. Raises InputError for fields among them."""
    fields, settings = _split(options)
    if fields:
        raise InputError(f"{listed(fields)} go inside each input when a list of inputs is given.")
    return settings


def single_input(source: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Returns the one input of a call, given by position or as options, and its settings. Raises InputError for none
    and for two."""
    fields, settings = _split(options)
    if source is not None and fields:
        raise InputError(
            f"an input was given twice: by position and as {listed(fields)}; name all that it has, as text= or images=."
        )
    if source is None and not fields:
        raise InputError("no input: give an image or a text, or images=, text=, pixel_values= or encoder_output=.")
    return (fields if source is None else source), settings


def check_request(request: Any, call: str) -> None:
    """Raises InputError for what is not a Request yet; `call`: how one is made of an input."""
    if not isinstance(request, Request):
        kind = type(request).__name__
        raise InputError(
            f"a Request is what is generated from, got {kind}; make the request of an input first: {call}."
        )


def _split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    if "on_error" in options:
        raise InputError("on_error is of as_completed(), which goes on behind an error; leave it out.")
    fields = {name: value for name, value in options.items() if name in FIELDS and value is not None}
    return fields, {name: value for name, value in options.items() if name not in FIELDS}
