"""The parameters of KServe's requests: each is honoured, or refused by its name.

https://github.com/triton-inference-server/server: docs/protocol/extension_parameters.md, extension_schedule_policy.md,
extension_sequence.md, extension_binary_data.md; https://github.com/SeldonIO/MLServer: docs/user-guide/content-type.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vlm.errors import InputError, listed, shown
from vlm_app.server.tensors.aliases import by_own_names, nearest
from vlm_app.server.tensors.ft_tensors import without_neutral
from vlm_app.server.tensors.settings import SCALARS
from vlm_app.server.tensors.specs import TASK_NAME, TENSORS_IN, WORDS_IN, check_batch
from vlm_app.server.tensors.values import as_element

EMPTY_FINAL = "triton_enable_empty_final_response"
SWITCHES = ("binary_data_output", "sequence_start", "sequence_end", EMPTY_FINAL)
OF_INPUTS, OF_OUTPUTS = ("binary_data_size",), ("binary_data", "classification")
ALLOWED = ("binary_data_output", "priority", "sequence_id", "timeout", EMPTY_FINAL)
LONGEST = 2**53  # µs; a float holds it exactly
CONTENT_TYPE, CONTENT_TYPES = "content_type", ("np", "str")  # MLServer's: arrays and texts, as tensors are anyway
DTYPES = {"INT32": np.int32, "UINT32": np.uint32, "UINT64": np.uint64, "FP32": np.float32, "BOOL": np.bool_}


@dataclass(frozen=True)
class Parameters:
    """Reads what a request says apart from its tensors."""

    timeout: float | None  # seconds
    empty_final: bool  # a stream's last response is an empty one
    options: dict[str, Any]  # values for all rows of the tensors of these names


def check(parameters: dict[str, Any]) -> Parameters:
    """Raises InputError for a parameter that is unknown, or that asks for what is not done here."""
    parameters = without_neutral(by_own_names(_without_content_type("the request", parameters).items()))
    unknown = [name for name in parameters if name not in (*ALLOWED, *SWITCHES, *SCALARS, *WORDS_IN)]
    if unknown:
        allowed = listed((*ALLOWED, *SCALARS, *WORDS_IN), 40)
        near = nearest(unknown, (*ALLOWED, *SCALARS, *WORDS_IN, *TENSORS_IN))
        raise InputError(f"the parameter {listed(unknown)} is unknown here{near}; allowed are {allowed}.")
    for name in SWITCHES:
        if not isinstance(parameters.get(name, False), bool):
            raise InputError(f"the parameter {name} is {shown(parameters[name])}; it must be true or false.")
    _check_sequence(parameters)
    if (priority := parameters.get("priority", 0)) != 0 or isinstance(priority, bool):
        raise InputError(
            f"the parameter priority is {shown(priority)}; requests are served as they come: leave it at 0."
        )
    options = {name: value for name, value in parameters.items() if name in (*SCALARS, *WORDS_IN)}
    return Parameters(_timeout(parameters.get("timeout", 0)), parameters.get(EMPTY_FINAL, False), options)


def read_parameters(entry: dict[str, Any], where: str) -> dict[str, Any]:
    """Returns an object's parameters. InputError where they are no object."""
    parameters = entry.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise InputError(f"the parameters of {where} must be an object of names and values.")
    return parameters or {}


def check_tensors(head: dict[str, Any]) -> None:
    """Raises InputError for parameters of a request's tensors that ask for what is not done here."""
    for kind, names in (("input", OF_INPUTS), ("output", OF_OUTPUTS)):
        entries = head.get(f"{kind}s")
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict):
                _check_tensor(f"{kind} {entry.get('name')}", entry, names)


def with_options(inputs: dict[str, np.ndarray], options: dict[str, Any]) -> dict[str, np.ndarray]:
    """Returns the tensors and, for each option, one of [batch, 1] that says the same for every row.

    Raises InputError for an option that is given twice or whose value is none of its kind, LimitError for more rows
    than a batch may have: tensors without values say any number of them.
    """
    inputs = by_own_names(inputs.items())
    if twice := sorted(options.keys() & inputs.keys()):
        raise InputError(f"{listed(twice)} is given as a tensor and as a parameter; give it once.")
    batch = max((len(array) for array in inputs.values() if array.ndim), default=0)
    check_batch(batch)
    return {**inputs, **{name: _filled(name, value, batch) for name, value in options.items()}}


def _check_sequence(parameters: dict[str, Any]) -> None:
    """Refuses sequences: requests are independent of each other."""
    if (
        parameters.get("sequence_id", 0) not in (0, "")
        or parameters.get("sequence_start")
        or parameters.get("sequence_end")
    ):
        raise InputError("the parameter sequence_id is given; models keep no state between requests, so leave it out.")


def _timeout(value: Any) -> float | None:
    if type(value) is not int or not 0 <= value <= LONGEST:
        raise InputError(f"the parameter timeout is {shown(value)}; it must be microseconds, a whole number from 0 on.")
    return value / 1e6 or None


def _check_tensor(where: str, entry: dict[str, Any], names: tuple[str, ...]) -> None:
    parameters = _without_content_type(where, read_parameters(entry, where))
    if any(name.startswith("shared_memory") for name in parameters):
        raise InputError(f"{where} lies in shared memory, which is not served; send it in the request.")
    if unknown := [name for name in parameters if name not in names]:
        raise InputError(f"{where} has the parameter {listed(unknown)}; allowed are {listed(names)}.")
    if parameters.get("classification", 0) != 0:
        raise InputError(f"{where} asks for classification; these models give no classes.")
    if not isinstance(parameters.get("binary_data", False), bool):
        raise InputError(f"{where} has binary_data {shown(parameters['binary_data'])}; it must be true or false.")


def _without_content_type(where: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Returns parameters without the one that MLServer's codecs add. Raises InputError where it asks for another
    reading of the values (`base64`, `pd`)."""
    if (kind := parameters.get(CONTENT_TYPE, CONTENT_TYPES[0])) not in CONTENT_TYPES:
        raise InputError(f"{where} has content_type {shown(kind)}; allowed are {listed(CONTENT_TYPES)}: leave it out.")
    return {name: value for name, value in parameters.items() if name != CONTENT_TYPE}


def _filled(name: str, value: Any, batch: int) -> np.ndarray:
    if name == TASK_NAME.name and type(value) is int and abs(value) < 2**63:
        return np.full((batch, 1), value, np.int64)
    if name in WORDS_IN:
        return np.full((batch, 1), _text_of(name, value), object)
    kind = SCALARS[name]
    types = {"BOOL": (bool,), "FP32": (int, float)}.get(kind, (int,))
    if not isinstance(value, types) or (kind != "BOOL" and isinstance(value, bool)):
        raise InputError(f"the parameter {name} is {shown(value)}; it must be {kind}.")
    try:
        with np.errstate(over="ignore"):  # what is too large is infinite, which options refuse
            return np.full((batch, 1), value, DTYPES[kind])
    except OverflowError:
        raise InputError(f"the parameter {name} is {shown(value)}; it must be {kind}.") from None


def _text_of(name: str, value: Any) -> bytes:
    if not isinstance(value, str):
        kinds = "a text or a number" if name == TASK_NAME.name else "a text"
        raise InputError(f"the parameter {name} is {shown(value)}; it must be {kinds}.")
    return as_element(value)
