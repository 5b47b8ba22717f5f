"""What a family brings to read its images. Light: no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlm.registry.images.shapes import pad_sliver
from vlm.registry.images.transforms import Settings, Transform, transformers_class

if TYPE_CHECKING:
    from PIL import Image


def largest(size: Any) -> float:
    """Returns the largest number of a size, which is one or a mapping of several."""
    values = size.values() if isinstance(size, Mapping) else [size]
    return max((value for value in values if isinstance(value, int | float)), default=0)


def largest_sides(settings: Settings) -> dict[str, float]:
    """Returns the pixels a side that settings of transformers' scale to."""
    return {name: largest(settings.get(name)) for name in ("size", "crop_size", "pad_size")}


def exact_size(image_size: tuple[int, int]) -> dict[str, Any]:
    """Returns the settings that scale an image to (height, width)."""
    return {"size": {"height": image_size[0], "width": image_size[1]}}


def scale_by_size(size: tuple[float, float], settings: Settings) -> float | None:
    """Returns the factor by which a processor of transformers' scales a picture of (height, width), from its `size`;
    None where it scales none, or in another way."""
    target = settings.get("size")
    if not settings.get("do_resize", True) or not isinstance(target, Mapping):
        return None
    if set(target) == {"shortest_edge"}:
        return target["shortest_edge"] / min(size)
    if {"height", "width"} <= set(target):
        return max(target["height"] / size[0], target["width"] / size[1])
    return None


def whole_size(image: Image.Image, settings: Settings) -> tuple[int, int]:
    """Returns the (height, width) of an image of which all is kept."""
    return image.height, image.width


class QuestionUse(Enum):
    """What becomes of a request's question, where a model reads no text beside its image."""

    DRAWN = "drawn"  # on the picture: every request has one
    BEGINS = "begins"  # the output begins with it


def no_question(settings: Settings) -> QuestionUse | None:
    return None


def not_drawn(image: Image.Image, question: str, folder: Path | None) -> Image.Image:
    raise NotImplementedError


@dataclass(frozen=True)
class ImageProcessorSpec:
    """One image processor, under the name that a preprocessor_config.json gives it.

    Its functions are a module's own, no lambdas or partials: the processes that read images are told of them by name.
    """

    name: str
    load: Callable[[str, Settings], Transform] = transformers_class  # (name, settings)
    default_settings: Callable[[tuple[int, int]], dict[str, Any]] = exact_size  # of a model without any
    prepare: Callable[[Image.Image, Settings], Image.Image] = pad_sliver  # an image, before the transform
    sides: Callable[[Settings], dict[str, float]] = largest_sides  # pixels that images are scaled to, by setting
    # how pages are drawn no larger than what is kept of them: the (height, width) of the part of an image that is
    # scaled, and by which factor; None: not known, so that pages are drawn at full size
    content_size: Callable[[Image.Image, Settings], tuple[int, int]] = whole_size
    scale: Callable[[tuple[float, float], Settings], float | None] = scale_by_size
    question_use: Callable[[Settings], QuestionUse | None] = no_question
    # (image, question, the folder of the settings, where there may be a font) -> the image with the question on it
    draw_question: Callable[[Image.Image, str, Path | None], Image.Image] = not_drawn

    @property
    def takes_question(self) -> bool:
        """Says whether models are given words about an image: drawn on it, or where the output begins."""
        return self.question_use is not no_question
