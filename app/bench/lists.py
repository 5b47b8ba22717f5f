"""Options that hold several values: "1;8;32", "60,20;128,20", "torch,onnxruntime", "260-440"."""

from __future__ import annotations

import json
import re
from typing import Any

from vlm.errors import InputError, listed
from vlm.options import Option, defaults_of, options_of
from vlm.requests.sampling_options import SamplingOptions

# sections of generation's settings that a row may have, but for what other options say
SETTINGS = ("Drawing", "Penalties", "Tokens that may come", "Beams and several outputs")
OF_OTHER_OPTIONS = ("num_beams", "num_return_sequences")


def numbers(text: str, option: str, separator: str = ";") -> tuple[int, ...]:
    """Reads "1;8;32". Raises InputError for anything but whole numbers."""
    try:
        return tuple(int(part) for part in text.split(separator))
    except ValueError:
        raise InputError(f"{option} holds {text!r}; give whole numbers, apart by {separator!r}.") from None


def names(text: str | None) -> tuple[str, ...]:
    """Reads "torch,onnxruntime"."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def pairs(text: str, option: str) -> tuple[tuple[int, int], ...]:
    """Reads "60,20;128,20". Raises InputError for anything but pairs of whole numbers."""
    groups = [numbers(group, option, ",") for group in text.split(";")]
    pairs = tuple((group[0], group[1]) for group in groups if len(group) == 2)
    if len(pairs) < len(groups):
        raise InputError(f'{option} is {text!r}; give pairs such as "60,20;128,20".')
    return pairs


def rates(text: str, option: str) -> tuple[float, ...]:
    """Reads "1,2.5,inf". Raises InputError for what is no number above 0."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{option} is {text!r}; give requests a second such as 4, 0.5,1,2 or inf.") from None
    for value in values:
        if not value > 0:
            raise InputError(f"{option} holds {value:g}; a rate must be above 0, or inf for all at once.")
    return values


def length_range(text: str, option: str) -> tuple[int, int]:
    """Reads "260-440", or "128" for both ends. Raises InputError for what is no range of numbers above 0."""
    match = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", text)
    if match is None:
        raise InputError(f"{option} is {text!r}; give tokens such as 128, or a range such as 260-440.")
    low, high = int(match[1]), int(match[2] or match[1])
    if low < 1:
        raise InputError(f"{option} is {text!r}; it must be at least 1.")
    if low > high:
        raise InputError(f"{option} is {text!r}; its first number must not be above the second: {high}-{low}.")
    return low, high


def sizes(text: str, option: str) -> tuple[tuple[int, int], ...]:
    """Reads "336x336,640x480". Raises InputError for what is no size in pixels."""
    matches = [re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", part.strip()) for part in text.split(",")]
    found = tuple((int(match[1]), int(match[2])) for match in matches if match)
    if len(found) < len(matches):
        raise InputError(f"{option} is {text!r}; give width and height such as 336x336 or 336x336,640x480.")
    return found


def size(text: str, option: str) -> tuple[int, int]:
    """Reads "1920x1080". Raises InputError for what is no size in pixels, or several."""
    found = sizes(text, option)
    if len(found) != 1:
        raise InputError(f"{option} is {text!r}; give one width and height such as {found[0][0]}x{found[0][1]}.")
    return found[0]


def settings(text: str, option: str) -> tuple[dict[str, Any], ...]:
    """Reads ";top_k=50,temperature=0.7": settings of generation, a row each, of which the first has none; a row may be
    a JSON object, too. Raises InputError for what is no number, and for what Hugging Face has no name for."""
    return tuple(_settings_of(row.strip(), option) for row in text.split(";"))


def _settings_of(row: str, option: str) -> dict[str, Any]:
    """Reads the settings of one row."""
    is_json = row.startswith("{")
    found = json_object(row, option) if is_json else _named_values(row)
    allowed = [name for name, setting in options_of(SamplingOptions).items() if _may_be_measured(name, setting)]
    if unknown := [name for name in found if name not in allowed]:
        raise InputError(f"{option} names {listed(unknown)}; allowed are {listed(allowed)}.")
    return found if is_json else {name: _number(value, name, option) for name, value in found.items()}


def _named_values(row: str) -> dict[str, str]:
    """Reads "top_k=50,temperature=0.7"."""
    parts = (part.strip().partition("=") for part in row.split(",") if part.strip())
    return {name: value for name, _, value in parts}


def _may_be_measured(name: str, setting: Option) -> bool:
    """Says whether Hugging Face has a setting by that name, and no other option says it."""
    return setting.section in SETTINGS and setting.model_key is not None and name not in OF_OTHER_OPTIONS


def _number(text: str, name: str, option: str) -> float:
    kind = type(defaults_of(SamplingOptions)[name])
    if kind not in (int, float):
        raise InputError(f'{option} {name} is no number; give its row as a JSON object: {{"{name}": …}}.')
    try:
        return kind(text)
    except ValueError:
        numbers = "a whole number" if kind is int else "a number"
        raise InputError(f"{option} {name} is {text!r}; give {numbers}.") from None


def json_object(text: str, option: str) -> dict[str, Any]:
    """Reads '{"top_p": 0.9}'. Raises InputError for what is no JSON object."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise InputError(f"{option} is {text!r}; give a JSON object such as '{{\"top_p\": 0.9}}'.")
    return value
