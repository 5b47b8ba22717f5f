"""Settings of Qwen2-VL's and Pixtral's image processors, where each is of a form that people publish."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from visual_engines.images.levels import BICUBIC, Size
from vlm.registry.images.transforms import NOT_ARGUMENTS, Settings, fused_normalization
from vlm.requests.pixels import Normalization

# the defaults of both classes of transformers'
DEFAULTS = {
    "do_resize": True, "resample": BICUBIC, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True,
    "image_mean": (0.48145466, 0.4578275, 0.40821073), "image_std": (0.26862954, 0.26130258, 0.27577711),
}  # fmt: skip
NORMALIZING = ("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std")
# what changes nothing of an RGB picture: the class's conversion to RGB, and the order in which it gives the axes
IDLE = {"do_convert_rgb": (True, False, None), "data_format": ("channels_first", None)}


def filled(settings: Settings, defaults: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the settings with a class's defaults; None where there is one that is not among these, null for one that
    has a default, or a switch that is none."""
    said = {key: value for key, value in settings.items() if key not in NOT_ARGUMENTS}
    said = {key: value for key, value in said.items() if key in defaults or value not in IDLE.get(key, (None,))}
    if not said.keys() <= defaults.keys() or any(value is None and defaults[key] for key, value in said.items()):
        return None
    switches = [value for key, value in said.items() if key.startswith("do_")]
    return {**defaults, **said} if all(value in (True, False, None) for value in switches) else None


def normalization_of(settings: Settings) -> Normalization | None:
    """Returns that of filled settings; None where they do not normalize, or not by numbers of three colors."""
    colors = settings["image_mean"], settings["image_std"]
    if not all(isinstance(each, list | tuple) and len(each) == 3 and all(map(_is_number, each)) for each in colors):
        return None
    divisors = settings["rescale_factor"], *settings["image_std"]
    if not all(_is_number(each) and each > 0 for each in divisors):
        return None
    return fused_normalization(**{name: settings[name] for name in NORMALIZING})


def size_by(size: Any, *names: str) -> Size | None:
    """Returns two lengths by their names; None where a size has others, or no whole numbers above 0."""
    if not isinstance(size, Mapping) or set(size) != set(names) or not all(map(is_length, size.values())):
        return None
    first, second = (size[name] for name in names)
    return first, second


def is_length(pixels: Any) -> bool:
    """Says whether a setting is a whole number above 0."""
    return type(pixels) is int and pixels > 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)
