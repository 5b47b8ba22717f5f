"""Reads a foreign model configuration as Hugging Face's class of its model_type does.

A key that the class does not read changes nothing. One that it reads and that changes the maths is honoured, or has its
values checked and is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vlm.artifacts.hugging_face.generation_config import check_token_ids, is_token_id
from vlm.errors import ConfigError, cut, listed, shown
from vlm.limits import MAX_INPUT_SIDE

REQUIRED = object()
SLIDING, FULL = "sliding_attention", "full_attention"  # kinds of layers
# names of one function, as Hugging Face's ACT2FN has them -> vlm.ops.activation.ACTIVATIONS
ACTIVATION_NAMES = {
    "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_new", "gelu_fast": "gelu_new", "relu": "relu",
    "gelu_accurate": "gelu_new", "gelu_pytorch_tanh": "gelu_new", "gelu_python_tanh": "gelu_new", "silu": "silu",
    "swish": "silu",
}  # fmt: skip


class ConfigReader:
    """Reads keys, collects what is wrong with them and raises once. `aliases`: other names of keys, as `attribute_map`
    has them; a value under such a name prevails."""

    def __init__(self, values: dict[str, Any], what: str, aliases: Mapping[str, str] | None = None):
        theirs = {key: values[alias] for alias, key in (aliases or {}).items() if values.get(alias) is not None}
        self.values, self.what = values | theirs, what
        self.errors: list[str] = []
        self.choice("per_layer_config", [None])

    def get(self, name: str, default: Any = REQUIRED) -> Any:
        """Returns a key's value; absent, it has `default`. Where that is a float, another value must be a number; where
        it is a count or a list, one of these."""
        value = self.values.get(name, default)
        if value is REQUIRED:
            self.errors.append(f"{name} is missing")
        elif value is None and default is not None:
            self.errors.append(f"{name} is null")
        elif kind := _other_kind(value, default):
            self.errors.append(f"{name} is {shown(value)}, it must be {kind}")
            return default
        return value

    def size(self, name: str, default: Any = REQUIRED) -> int:
        """Returns a key's value, which must be a whole number above 0 (else 1); absent or null, it has `default`."""
        value = default if self.values.get(name) is None else self.values[name]
        if is_size(value):
            return value
        missing = value is REQUIRED
        self.errors.append(
            f"{name} is missing" if missing else f"{name} is {shown(value)}, it must be a whole number above 0"
        )
        return 1

    def sides(self, name: str, default: int) -> tuple[int, int]:
        """Returns the (height, width) that a key gives, as one whole number above 0 or two; absent, both are
        `default`."""
        value = self.values.get(name, default)
        sides: list[Any] = list(value) if isinstance(value, list | tuple) else [value, value]
        whole = [side for side in sides if is_size(side)]
        if len(sides) == len(whole) == 2:
            return whole[0], whole[1]
        self.errors.append(f"{name} is {shown(value)}, it must be a whole number above 0, or two")
        return 1, 1

    def check_patches(self, image_size: tuple[int, int], patch: int, merged: int = 1) -> None:
        """Checks that images have no more pixels a side than image processors scale to, and room for a patch, or for a
        square of so many `merged` patches a side. Nothing is said of sizes that are none."""
        names = ("image_size is ", "patch_size is ", "spatial_merge_size is ")
        if any(error.startswith(names) for error in self.errors):
            return
        sides = " × ".join(map(cut, image_size))
        if max(image_size) > MAX_INPUT_SIDE:
            self.errors.append(f"image_size is {sides}, an image has {MAX_INPUT_SIDE:,} pixels a side at most")
        if patch * merged > min(image_size):
            squares = f"patch_size is {cut(patch)}" + f" and spatial_merge_size {cut(merged)}" * (merged > 1)
            self.errors.append(f"{squares}, more than images of {sides} have room for")

    def choice(self, name: str, allowed: Iterable[Any], default: Any = None) -> Any:
        """Returns the value of a key that may only have certain ones; absent, it has `default`."""
        value = self.values.get(name, default)
        if value not in (choices := list(allowed)):
            self.errors.append(f"{name} is {shown(value)}, supported is {listed(map(repr, choices))}")
        return value

    def token_id(self, name: str, default: int | None) -> int | None:
        """Returns the value of a key that names a token; absent, it has `default`."""
        value = self.get(name, default)
        if value is not None and not is_token_id(value):
            self.errors.append(f"{name} is {shown(value)}, it must be a token's id")
        return value

    def activation(self, name: str, default: str) -> str:
        """Returns the function that a key names, by our name."""
        return ACTIVATION_NAMES.get(self.choice(name, ACTIVATION_NAMES, default), default)

    def sliding_layers(self, layers: int, default: Callable[[int], bool]) -> tuple[bool, ...]:
        """Returns which layers attend within a sliding window, as `layer_types` lists them; absent, as `default` says
        of a layer's number."""
        kinds = self.values.get("layer_types")
        if kinds is None:
            return tuple(map(default, range(layers)))
        if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in (SLIDING, FULL) for kind in kinds):
            self.errors.append(
                f"layer_types is {shown(kinds)}, supported are {SLIDING!r} and {FULL!r}, for {layers} layers"
            )
            return (False,) * layers
        return tuple(kind == SLIDING for kind in kinds)

    def multiple(self, name: str, value: int, parts: str, count: int) -> None:
        """Checks that a size can be divided into so many parts, where both are sizes."""
        invalid = any(error.startswith((f"{name} is ", f"{parts} is ")) for error in self.errors)
        if not invalid and value % count:
            self.errors.append(f"{name} {cut(value)} is no multiple of {parts} {cut(count)}")

    def raise_errors(self) -> None:
        """Raises ConfigError with every reason."""
        if self.errors:
            raise ConfigError(f"this {self.what} configuration cannot be run exactly: {listed(self.errors)}.")


def is_size(value: Any) -> bool:
    """Says whether a value may be a size: a whole number above 0, of those that tensors can have."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63


def _other_kind(value: Any, default: Any) -> str | None:
    """Returns what a value must be where it is not of its default's kind; None where it is, or any will do."""
    if isinstance(default, bool) or not isinstance(default, int | float | list | tuple):
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(default, float):
        return None if is_number else "a number"
    return None if is_number or isinstance(value, list | tuple) else "a number or a list"


def token_id(values: dict[str, Any], name: str, default: int) -> int:
    """Returns a token id of a configuration; the first where it lists several. ConfigError for a value that is none."""
    value = values.get(name)
    check_token_ids(name, value)
    if isinstance(value, list):
        value = value[0] if value else None
    return default if value is None else value
