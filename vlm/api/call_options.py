"""The options of a pipeline's calls: fields of a single input, or settings of requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlm.errors import InputError
from vlm.processing.inputs.fields import INPUT_KEYS
from vlm.processing.inputs.request_builder import RequestBuilder
from vlm.requests.request import Request

FIELDS = frozenset(INPUT_KEYS) - {"lora"}  # which is an option of inputs that are given in any way


def inputs_of(
    sources: Sequence[Any], options: dict[str, Any], builder: RequestBuilder
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Returns the inputs of a call, each with the fields among its options, and the settings. Raises InputError for a
    field that an input has itself."""
    fields, settings = _split(options)
    return ([builder.completed(source, fields) for source in sources] if fields else sources), settings


def single_input(source: Any, options: dict[str, Any], builder: RequestBuilder) -> tuple[Any, dict[str, Any]]:
    """Returns the one input of a call, given by position, as options, or in parts as either, and its settings. Raises
    InputError for none, and for a field that is given twice."""
    fields, settings = _split(options)
    if source is None and not fields:
        raise InputError("no input: give an image or a text, or images=, text=, pixel_values= or encoder_output=.")
    return (fields if source is None else builder.completed(source, fields)), settings


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
