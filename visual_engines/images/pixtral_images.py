"""Pixtral's image processor. It is written here because what transformers' class imports takes longer than the model's
weights; a test holds its levels equal to that class's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from visual_engines.images import published_settings
from visual_engines.images.levels import MODES, Size, resized, to_levels
from visual_engines.images.published_settings import filled, is_length, normalization_of, size_by
from vlm.errors import shown
from vlm.registry.images.processor import ImageProcessorSpec, largest_sides
from vlm.registry.images.transforms import Settings, Transform, transformers_class

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

DEFAULTS = {
    **published_settings.DEFAULTS, "size": {"longest_edge": 1024}, "patch_size": {"height": 16, "width": 16},
    "default_to_square": True, "do_center_crop": False, "crop_size": None,
}  # fmt: skip


@dataclass(frozen=True)
class WholePatches:
    """Scales images down to a frame, if they are larger, and to whole patches."""

    frame: Size | None  # None: no image is scaled
    patch_size: Size
    mode: str

    def __call__(self, images: Sequence[Image.Image]) -> Tensor:
        """Turns RGB images that come out in one size into levels [n, 3, H, W] uint8."""
        import numpy as np
        import torch

        return torch.cat([self._processed(to_levels(np.asarray(image))) for image in images])

    def _processed(self, levels: Tensor) -> Tensor:
        if self.frame is not None:
            levels = resized(levels, self._size(levels.shape[2], levels.shape[3], self.frame), self.mode)
        return levels.contiguous()

    def _size(self, height: int, width: int, frame: Size) -> Size:
        ratio = max(height / frame[0], width / frame[1])
        if ratio > 1:
            height, width = math.floor(height / ratio), math.floor(width / ratio)
        down, across = self.patch_size
        return ((height - 1) // down + 1) * down, ((width - 1) // across + 1) * across


def _load(name: str, settings: Settings) -> Transform:
    """Returns what the class does with images of one size; transformers' own one for settings of another form than is
    published."""
    # `do_pad` makes images of a batch as large as its largest: of one size they are
    known = filled({key: value for key, value in settings.items() if key != "do_pad"}, DEFAULTS)
    if known is None or (own := _whole_patches(known)) is None or (normalization := normalization_of(known)) is None:
        return transformers_class(name, settings)
    return Transform(own, normalization)


def _whole_patches(settings: Settings) -> WholePatches | None:
    """Returns what filled settings do; None where they are of another form than is published."""
    frame, patch_size = _square(settings["size"], "longest_edge"), _square(settings["patch_size"])
    mode = MODES.get(settings["resample"])
    if frame is None or patch_size is None or mode is None or settings["do_center_crop"]:
        return None
    return WholePatches(frame if settings["do_resize"] else None, patch_size, mode)


def _square(size: Any, name: str | None = None) -> Size | None:
    """Returns (height, width) of a size that has both, or one number, perhaps under a name; None for others."""
    side: Any = size[name] if isinstance(size, Mapping) and set(size) == {name} else size
    return (side, side) if is_length(side) else size_by(side, "height", "width")


def _settings(image_size: tuple[int, int]) -> dict[str, Any]:
    return {"size": {"longest_edge": max(image_size)}, "patch_size": 14}


def _scale(size: tuple[float, float], settings: Settings) -> float | None:
    """Returns the factor that brings the longest side to the model's; smaller pictures are not enlarged."""
    longest = (settings.get("size") or {}).get("longest_edge")
    return None if longest is None else min(1.0, longest / max(size))


def _sides(settings: Settings) -> dict[str, float]:
    """Returns the pixels a side that settings scale to, and of a patch. ValueError for one that is no size."""
    patch = settings.get("patch_size", DEFAULTS["patch_size"])
    lengths = patch if isinstance(patch, list | tuple) and len(patch) == 2 else _square(patch)
    if lengths is None or not all(map(is_length, lengths)):
        raise ValueError(f"patch_size is {shown(patch)}, it must be a whole number above 0, or a height and a width")
    return {**largest_sides(settings), "patch_size": max(lengths)}


PIXTRAL_IMAGES = ImageProcessorSpec("PixtralImageProcessor", _load, _settings, sides=_sides, scale=_scale)
