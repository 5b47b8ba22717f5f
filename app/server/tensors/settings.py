"""The settings of a request that KServe's protocol takes as tensors of one value, or as parameters."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any

import numpy as np

from vlm.options import Offer, Option, options_of, without_none
from vlm.ranges import Range
from vlm.requests.sampling_params import SamplingParams
from vlm_app.server.core.setting_names import in_kserve

ADAPTER = "lora_task_uids"
STREAM = "stream"  # false: a request over a stream gets one response
# no settings of SamplingParams
OTHERS = {"is_return_log_probs": "BOOL", STREAM: "BOOL", "start_id": "UINT32", "end_id": "UINT32", ADAPTER: "INT32"}


def offered() -> dict[str, tuple[str, Offer]]:
    """Returns (the field, how it is offered) of each setting that the protocol has, by its names."""
    names = in_kserve()
    offers = ((name, own.kserve) for name, own in options_of(SamplingParams).items())
    return {names[name]: (name, offer) for name, offer in offers if offer is not None}


def datatypes() -> dict[str, str]:
    """Returns the types of all that is one value a request, by the protocol's names."""
    hints, options = typing.get_type_hints(SamplingParams), options_of(SamplingParams)
    return {name: _datatype(hints[field], options[field]) for name, (field, _) in offered().items()} | OTHERS


def settings_of(row: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Returns the settings that one row of tensors holds, by their fields."""
    values = {field: (row[name].item(), offer.read) for name, (field, offer) in OFFERED.items() if name in row}
    return {field: read(value) if read else value for field, (value, read) in values.items()}


def adapter_of(row: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Returns what one row of tensors says of its input's adapter, as the pipeline's inputs have it: its number."""
    return {"lora": int(row[ADAPTER])} if ADAPTER in row else {}


def _datatype(hint: Any, option: Option) -> str:
    wide = isinstance(option.allowed, Range) and 2**32 < option.allowed.high < float("inf")
    if hint == bool | str:
        return "BOOL"  # without its words
    return {bool: "BOOL", float: "FP32", int: "UINT64" if wide else "UINT32"}[without_none(hint)]


def streams(inputs: Mapping[str, np.ndarray]) -> bool:
    """Says whether a request over a stream wants its outputs as they are decoded."""
    return STREAM not in inputs or bool(inputs[STREAM].any())


OFFERED = offered()
SCALARS = datatypes()
