"""Qwen2-VL's image processor. It is written here because what transformers' class imports takes longer than the model's
weights; a test holds its levels equal to that class's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from visual_engines.images import published_settings
from visual_engines.images.levels import MODES, Size, resized, to_levels
from visual_engines.images.published_settings import filled, normalization_of, size_by
from vlm.errors import ImageError, shown
from vlm.registry.images.processor import ImageProcessorSpec, largest
from vlm.registry.images.transforms import Settings, Transform, transform_by

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

SIZES = {"patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}  # where the settings do not say
SLIMMEST = 200  # longest side over shortest that its processor takes
LEAST_PIXELS = 56 * 56  # as published; the class itself has fewer at most
MOST_PIXELS = 28 * 28 * 1280
DEFAULTS = {
    **published_settings.DEFAULTS, **SIZES, "size": {"shortest_edge": LEAST_PIXELS, "longest_edge": MOST_PIXELS},
    "default_to_square": False, "min_pixels": None, "max_pixels": None,
}  # fmt: skip


@dataclass(frozen=True)
class SquaredImage:
    """Scales an image to whole squares of `square` pixels a side, `least` to `most` pixels in all."""

    square: int
    least: int
    most: int
    mode: str
    do_resize: bool = True

    def __call__(self, images: Sequence[Image.Image]) -> Tensor:
        """Turns one RGB image into levels [1, 3, H, W] uint8."""
        import numpy as np

        [levels] = (to_levels(np.asarray(image)) for image in images)
        if self.do_resize:
            levels = resized(levels, self.size_of(*levels.shape[2:]), self.mode)
        return levels.contiguous()

    def size_of(self, height: int, width: int) -> Size:
        """Returns the (height, width) that transformers' smart_resize does."""
        near = _multiple(height, self.square, round), _multiple(width, self.square, round)
        if math.prod(near) > self.most:
            scale = math.sqrt(height * width / self.most)
            return (
                max(self.square, _multiple(height / scale, self.square, math.floor)),
                max(self.square, _multiple(width / scale, self.square, math.floor)),
            )
        if math.prod(near) < self.least:
            scale = math.sqrt(self.least / (height * width))
            return _multiple(height * scale, self.square, math.ceil), _multiple(width * scale, self.square, math.ceil)
        return near


def _settings(image_size: tuple[int, int]) -> dict[str, Any]:
    return {"min_pixels": LEAST_PIXELS, "max_pixels": math.prod(image_size)}


def _multiple(length: float, of: int, whole: Callable[[float], int]) -> int:
    return whole(length / of) * of


def _load(name: str, settings: Settings) -> Transform:
    """Returns what the class does with one image; transformers' own one for settings of another form than is
    published."""
    known = filled(settings, DEFAULTS)
    if known is None or (own := _squared(known)) is None or (normalization := normalization_of(known)) is None:
        return _by_transformers(name, settings)
    return Transform(own, normalization)


def _squared(settings: Settings) -> SquaredImage | None:
    """Returns what filled settings do; None where they are of another form than is published."""
    given, mode = settings["size"], MODES.get(settings["resample"])
    edges = (("shortest_edge", settings["min_pixels"]), ("longest_edge", settings["max_pixels"]))
    preferred = {edge: pixels for edge, pixels in edges if pixels is not None}
    pixels = size_by({**given, **preferred}, *dict(edges)) if isinstance(given, Mapping) else None
    if pixels is None or mode is None:
        return None
    least, most = pixels
    return SquaredImage(_square(settings), least, most, mode, settings["do_resize"])


def _by_transformers(name: str, settings: Settings) -> Transform:
    """Returns what transformers' class does with one image, its patches put together again: whole squares of one frame,
    which it scales alike and moves in a third of the time that it takes for their patches in two equal frames."""
    import transformers

    square = _square(settings)
    one = {"patch_size": square, "merge_size": 1, "temporal_patch_size": 1}
    return transform_by(getattr(transformers, name), {**settings, **one}, _pixels, square=square)


def _check_sizes(settings: Settings) -> None:
    """Raises ValueError for sizes that the class could not cut patches by, which it is not told."""
    for name in SIZES:
        size = settings.get(name)
        if size is not None and not (isinstance(size, int) and size > 0):
            raise ValueError(f"{name} is {shown(size)}, it must be a whole number above 0")


def _square(settings: Settings) -> int:
    """Returns the pixels a side of what becomes one row of the language model."""
    return _size(settings, "patch_size") * _size(settings, "merge_size")


def _size(settings: Settings, name: str) -> int:
    return settings.get(name) or SIZES[name]


def _pixels(processed: Mapping[str, Any], settings: Settings) -> Tensor:
    """Squares [rows · columns, C · side²] -> [1, C, H, W]"""
    side = settings["patch_size"]
    [[_, rows, columns]] = processed["image_grid_thw"].tolist()
    squares = processed["pixel_values"].view(rows, columns, -1, side, side)
    return squares.permute(2, 0, 3, 1, 4).reshape(1, -1, rows * side, columns * side)


def _checked(image: Image.Image, settings: Settings) -> Image.Image:
    """Raises ImageError for an image that the processor does not take: a slim one, and one that it does not scale and
    cannot divide."""
    sides = image.size
    if not settings.get("do_resize", True):
        if any(side % _square(settings) for side in sides):
            raise ImageError(
                f"an image is {sides[0]} × {sides[1]} pixels; this model's preprocessor_config.json scales none"
                f" (do_resize: false) and takes sides that are multiples of {_square(settings)}: scale or crop it."
            )
        return image
    if max(sides) > SLIMMEST * min(sides):
        raise ImageError(
            f"an image is {sides[0]} × {sides[1]} pixels; this model reads those that are at most {SLIMMEST} times as"
            " long as wide: cut it into parts."
        )
    return image


def _scale(size: tuple[float, float], settings: Settings) -> float | None:
    """Returns the factor that brings an image into the range of pixels; None where none is scaled."""
    if not settings.get("do_resize", True):
        return None
    said, pixels = settings.get("size") or {}, size[0] * size[1]
    least = settings.get("min_pixels") or said.get("shortest_edge") or LEAST_PIXELS
    most = settings.get("max_pixels") or said.get("longest_edge") or MOST_PIXELS
    return math.sqrt(min(max(pixels, least), most) / pixels)


def _sides(settings: Settings) -> dict[str, float]:
    """Returns the pixels a side of the squares that settings scale to, and of the smallest. ValueError for no sizes."""
    _check_sizes(settings)
    pixels = {name: largest(settings.get(name)) for name in ("size", "min_pixels", "max_pixels")}
    sides = {"patch_size": _square(settings), "temporal_patch_size": _size(settings, "temporal_patch_size")}
    return {name: math.sqrt(count) for name, count in pixels.items()} | sides


QWEN_IMAGES = ImageProcessorSpec(
    "Qwen2VLImageProcessor",
    load=_load,
    default_settings=_settings,
    prepare=_checked,
    sides=_sides,
    scale=_scale,
)
