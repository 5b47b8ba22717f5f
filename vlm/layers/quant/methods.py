"""The methods, by what a build and a manifest call the quantization of weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from vlm.errors import ConfigError, listed
from vlm.layers.quant.base import LinearMethod
from vlm.layers.quant.dense import Dense
from vlm.layers.quant.fp8 import Fp8
from vlm.layers.quant.inputs import Inputs
from vlm.layers.quant.int4 import Int4
from vlm.layers.quant.int8 import Int8
from vlm.layers.quant.quantization import Quantization
from vlm.layers.quant.w8a8 import W8A8

GROUP_SIZE = 128
IGNORE = ("head", "visual")  # what stays as it is unless that is said otherwise
EVERYWHERE = ("*",)

# made of the options of a manifest's `quantization_options`
METHODS: Mapping[str, Callable[[Mapping[str, Any]], LinearMethod]] = {
    "int8": lambda options: Int8(),
    "w8a8": lambda options: W8A8(),
    "fp8": lambda options: Fp8(),
    "int4": lambda options: Int4(options.get("group_size") or GROUP_SIZE),
    "int4-asymmetric": lambda options: Int4(options.get("group_size") or GROUP_SIZE, symmetric=False),
}
ROUNDS_INPUTS = ("w8a8", "fp8")  # so that an input_scale means something


def quantization_of(name: str | None, options: Mapping[str, Any]) -> Quantization:
    """Returns what a manifest says; KeyError for a method that is not known, ConfigError for a static scale of inputs
    that a method does not round."""
    if name is None:
        return Quantization(Dense())
    if options.get("input_scale") and name not in ROUNDS_INPUTS:
        raise ConfigError(
            f"quantization {name} does not round what its weights meet, so it takes no input_scale; that is for"
            f" {listed(ROUNDS_INPUTS)}."
        )
    ignore = options.get("ignore")
    return Quantization(
        METHODS[name](options), IGNORE if ignore is None else tuple(ignore), inputs=_input_patterns(options)
    )


def _input_patterns(options: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Returns patterns of the layers by the parameter of their inputs; an option is true for all, or patterns."""
    values = {each.name: options.get(each.name) for each in fields(Inputs)}
    return {name: EVERYWHERE if value is True else tuple(value) for name, value in values.items() if value}
