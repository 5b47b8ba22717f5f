"""Nougat's image processor: margins cut off as transformers' class does, several times faster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vlm.registry.images import ImageProcessorSpec, Settings, Transform, is_sliver, transform_by

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

THRESHOLD = 200  # of a page's shades, from 0 to 255: what is darker is no margin
REDUCTION = 4


def _load(name: str, settings: Settings) -> Transform:
    from transformers import NougatImageProcessor

    class Processor(NougatImageProcessor):
        def crop_margin(self, image: Tensor, gray_threshold: int = THRESHOLD) -> Tensor:
            """Cuts the same box; keeps the margin where nothing but a sliver would be left, which cannot be scaled to
            the frame."""
            crop = _without_margin(image, gray_threshold)
            return image if is_sliver(*crop.shape[-2:]) else crop

    return transform_by(Processor, settings)


def _without_margin(image: Tensor, threshold: int) -> Tensor:
    """image [3, H, W] uint8 -> the box of what is darker than `threshold` on the page's own scale of 0 to 255"""
    import torch
    from torchvision.transforms.v2 import functional

    # by strips, whose intermediate floats stay in the processor's cache
    strips = [functional.rgb_to_grayscale(strip, num_output_channels=1)[0] for strip in image.split(64, dim=1)]
    grey = torch.cat(strips)
    low, high = (int(value) for value in grey.aminmax())
    if low == high:
        return image
    shades = torch.arange(low, high + 1, dtype=torch.uint8)
    dark = low + int(((shades - low) / (high - low) * 255 < threshold).sum())  # and what is below
    (top, bottom), (left, right) = (_ends(grey.amin(axis) < dark) for axis in (1, 0))
    return image[:, top : bottom + 1, left : right + 1]


def _ends(mask: Tensor) -> tuple[int, int]:
    """Returns the first and the last index that is marked."""
    places = mask.nonzero()[:, 0]
    return int(places[0]), int(places[-1])


def _content_size(image: Image.Image, settings: Settings) -> tuple[int, int]:
    """Returns the size without the margin, to within a few pixels: it is looked for in a smaller image."""
    import torch

    if not settings.get("do_crop_margin", True):
        return image.height, image.width
    small = image.reduce(REDUCTION)
    pixels = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8).view(small.height, small.width, 3)
    crop = _without_margin(pixels.permute(2, 0, 1), THRESHOLD)
    return crop.shape[1] * REDUCTION, crop.shape[2] * REDUCTION


def _scale(size: tuple[float, float], settings: Settings) -> float | None:
    """Returns the factor that brings the shorter side to the frame's; the longer one may be scaled further down."""
    frame = settings.get("size")
    if not settings.get("do_resize", True) or not isinstance(frame, Mapping) or not {"height", "width"} <= set(frame):
        return None
    return min(frame["height"], frame["width"]) / min(size)


NOUGAT_IMAGES = ImageProcessorSpec("NougatImageProcessor", _load, content_size=_content_size, scale=_scale)
