"""The image processors that visual towers are published with: classes of transformers, squares as LLaVA makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vlm.registry.images.processor import ImageProcessorSpec, scale_by_size
from vlm.registry.images.shapes import pad_sliver, pad_to_square, shrink_for_square
from vlm.registry.images.transforms import Settings, Transform, transformers_class

if TYPE_CHECKING:
    from PIL import Image

SQUARE = "pad_to_square"  # of the settings that the converters write, where LLaVA's own form says "pad"


def _load(name: str, settings: Settings) -> Transform:
    return transformers_class(name, {key: value for key, value in settings.items() if key != SQUARE})


def _fit(image: Image.Image, settings: Settings) -> Image.Image:
    """Pads slivers, but where each side is scaled to a length of its own, or neither is."""
    size = settings.get("size")
    apart = isinstance(size, Mapping) and {"height", "width"} <= size.keys()
    return image if apart or not settings.get("do_resize", True) else pad_sliver(image, settings)


def _fit_square(image: Image.Image, settings: Settings) -> Image.Image:
    """Does the same for classes that make a square of a size of one number, as old settings have it."""
    size = settings.get("size")
    return _fit(image, {**settings, "size": {"height": size, "width": size}} if isinstance(size, int) else settings)


def _square(image: Image.Image, settings: Settings) -> Image.Image:
    """Pads an image to a square of its mean colour where the settings say so."""
    if not settings.get(SQUARE):
        return _fit(image, settings)
    mean = settings.get("image_mean") or (0.5, 0.5, 0.5)
    return pad_to_square(shrink_for_square(image), tuple(int(shade * 255) for shade in mean))


def _square_later(image: Image.Image, settings: Settings) -> Image.Image:
    """Leaves the square to transformers, which makes one where the settings say `do_pad`."""
    if not settings.get("do_pad") or settings.get(SQUARE):
        return _square(image, settings)
    return _fit(shrink_for_square(image), settings)


def _scale(size: tuple[float, float], settings: Settings) -> float | None:
    """Returns the factor of a square, where one is made of the image."""
    is_square = settings.get(SQUARE) or settings.get("do_pad")
    return scale_by_size((max(size), max(size)) if is_square else size, settings)


def _cropped(image_size: tuple[int, int]) -> dict[str, Any]:
    crop = {"height": image_size[0], "width": image_size[1]}
    return {"size": {"shortest_edge": min(image_size)}, "crop_size": crop}


def _cropped_as_scaled(image_size: tuple[int, int]) -> dict[str, Any]:
    return {name: {"height": image_size[0], "width": image_size[1]} for name in ("size", "crop_size")}


CLIP = ImageProcessorSpec("CLIPImageProcessor", _load, _cropped, _square, scale=_scale)
BLIP = ImageProcessorSpec("BlipImageProcessor", _load, prepare=_square, scale=_scale)
SIGLIP = ImageProcessorSpec("SiglipImageProcessor", _load, prepare=_square, scale=_scale)
VIT = ImageProcessorSpec("ViTImageProcessor", prepare=_fit_square)
DEIT = ImageProcessorSpec("DeiTImageProcessor", default_settings=_cropped_as_scaled, prepare=_fit_square)
LLAVA = ImageProcessorSpec("LlavaImageProcessor", _load, prepare=_square_later, scale=_scale)


def preferring(first: ImageProcessorSpec) -> tuple[ImageProcessorSpec, ...]:
    """Returns all of them, the one first that is meant where a folder names none."""
    return (first, *(spec for spec in (CLIP, BLIP, SIGLIP, LLAVA) if spec is not first))
