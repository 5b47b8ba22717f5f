"""Nougat's image processor: transformers' levels, several times faster, and without what its class imports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlm.registry.images import (
    NOT_ARGUMENTS,
    ImageProcessorSpec,
    Settings,
    Transform,
    fused_normalization,
    is_sliver,
    transform_by,
)

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

THRESHOLD = 200  # of a page's shades, from 0 to 255: what is darker is no margin
REDUCTION = 4
STRIP = 64  # rows, whose intermediate floats stay in the processor's cache
BILINEAR = 2  # of PIL.Image.Resampling
NORMALIZED = {
    "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": (0.485, 0.456, 0.406),
    "image_std": (0.229, 0.224, 0.225), "resample": BILINEAR,
}  # fmt: skip


@dataclass(frozen=True)
class PageProcessor:
    """Settings of a preprocessor_config.json, with the defaults of transformers' class."""

    size: Mapping[str, int] = field(default_factory=lambda: {"height": 896, "width": 672})
    do_crop_margin: bool = True
    do_align_long_axis: bool = False
    do_resize: bool = True
    do_thumbnail: bool = True
    do_pad: bool = True

    def __call__(self, images: Sequence[Image.Image]) -> Tensor:
        """Turns RGB images into levels [n, 3, H, W] uint8."""
        import torch

        return torch.stack([self._processed(_levels(image)) for image in images])

    def _processed(self, page: Tensor) -> Tensor:
        frame = self.size["height"], self.size["width"]
        if self.do_crop_margin:
            page = _cropped(page)
        if self.do_align_long_axis and (frame[0] - frame[1]) * (page.shape[1] - page.shape[2]) < 0:
            page = page.rot90(3, dims=(1, 2))
        if self.do_resize:
            page = _resized(page, _with_short_side(page, min(frame)), "bilinear")
        if self.do_thumbnail:
            page = _resized(page, _within(page, frame), "bicubic")
        return _padded(page, frame) if self.do_pad else page.contiguous()


def _load(name: str, settings: Settings) -> Transform:
    own = {key: value for key, value in settings.items() if key not in NOT_ARGUMENTS}
    normalized = NORMALIZED | {key: own.pop(key) for key in NORMALIZED if key in own}
    if not (_is_known(own) and normalized["resample"] == BILINEAR):
        return _by_transformers(settings)
    normalization = fused_normalization(**{key: normalized[key] for key in NORMALIZED if key != "resample"})
    return _by_transformers(settings) if normalization is None else Transform(PageProcessor(**own), normalization)


def _is_known(settings: Mapping[str, Any]) -> bool:
    """Says whether all of these are settings of PageProcessor, in the form that is published."""
    size = settings.get("size", PageProcessor().size)
    return settings.keys() <= PageProcessor.__dataclass_fields__.keys() and (
        isinstance(size, Mapping) and set(size) == {"height", "width"}
    )


def _by_transformers(settings: Settings) -> Transform:
    """Returns what transformers' class does, for settings of another form."""
    from transformers import NougatImageProcessor

    class Processor(NougatImageProcessor):
        def crop_margin(self, image: Tensor, gray_threshold: int = THRESHOLD) -> Tensor:
            return _cropped(image)

    return transform_by(Processor, settings)


def _levels(image: Image.Image) -> Tensor:
    """Returns an RGB image as [3, H, W] uint8 in the order of the picture's bytes, in which resizing is fastest."""
    import torch

    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return pixels.view(image.height, image.width, 3).permute(2, 0, 1)


def _cropped(page: Tensor) -> Tensor:
    """Cuts the margin off; keeps it where nothing but a sliver would be left, which cannot be scaled to the frame."""
    crop = _without_margin(page)
    return page if is_sliver(*crop.shape[-2:]) else crop


def _without_margin(page: Tensor) -> Tensor:
    """page [3, H, W] uint8 -> the box of what is darker than THRESHOLD on the page's own scale of 0 to 255"""
    import torch

    grey = torch.cat([_grey(strip) for strip in page.split(STRIP, dim=1)])
    low, high = (int(value) for value in grey.aminmax())
    if low == high:
        return page
    shades = torch.arange(low, high + 1, dtype=torch.uint8)
    dark = low + int(((shades - low) / (high - low) * 255 < THRESHOLD).sum())  # and what is below
    (top, bottom), (left, right) = (_ends(grey.amin(axis) < dark) for axis in (1, 0))
    return page[:, top : bottom + 1, left : right + 1]


def _grey(page: Tensor) -> Tensor:
    """[3, H, W] uint8 -> [H, W] uint8, as torchvision weighs and truncates"""
    red, green, blue = page.unbind()
    return red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114).to(page.dtype)


def _ends(mask: Tensor) -> tuple[int, int]:
    """Returns the first and the last index that is marked."""
    places = mask.nonzero()[:, 0]
    return int(places[0]), int(places[-1])


def _with_short_side(page: Tensor, side: int) -> tuple[int, int]:
    """Returns the (height, width) that scales the shorter side to this."""
    height, width = page.shape[1:]
    long = int(side * max(height, width) / min(height, width))
    return (long, side) if width <= height else (side, long)


def _within(page: Tensor, frame: tuple[int, int]) -> tuple[int, int]:
    """Returns the (height, width) that no longer passes the frame on a side."""
    height, width = page.shape[1:]
    within = min(height, frame[0]), min(width, frame[1])
    if within == (height, width):
        return within
    if height > width:
        return within[0], int(width * within[0] / height)
    return (int(height * within[1] / width), within[1]) if width > height else within


def _resized(page: Tensor, size: tuple[int, int], mode: str) -> Tensor:
    """Scales to (height, width) with antialiasing: in 8 bits where torch has it for the processor, as torchvision
    does."""
    import torch
    from torch.nn.functional import interpolate

    if tuple(page.shape[1:]) == size:
        return page
    is_native = mode == "bicubic" or _has_native_bilinear()
    batch = page[None] if is_native else page[None].float()
    scaled = interpolate(batch, size, mode=mode, align_corners=False, antialias=True)[0]
    return scaled if is_native else scaled.round_().to(torch.uint8)


def _has_native_bilinear() -> bool:
    import platform

    import torch

    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512") or platform.machine() in ("aarch64", "arm64")


def _padded(page: Tensor, frame: tuple[int, int]) -> Tensor:
    """Puts a page into the middle of the frame."""
    from torch.nn.functional import pad

    down, across = frame[0] - page.shape[1], frame[1] - page.shape[2]
    return pad(page, (across // 2, across - across // 2, down // 2, down - down // 2))


def _content_size(image: Image.Image, settings: Settings) -> tuple[int, int]:
    """Returns the size without the margin, to within a few pixels: it is looked for in a smaller image."""
    if not settings.get("do_crop_margin", True):
        return image.height, image.width
    crop = _without_margin(_levels(image.reduce(REDUCTION)))
    return crop.shape[1] * REDUCTION, crop.shape[2] * REDUCTION


def _scale(size: tuple[float, float], settings: Settings) -> float | None:
    """Returns the factor that brings the shorter side to the frame's; the longer one may be scaled further down."""
    frame = settings.get("size")
    if not settings.get("do_resize", True) or not isinstance(frame, Mapping) or not {"height", "width"} <= set(frame):
        return None
    return min(frame["height"], frame["width"]) / min(size)


NOUGAT_IMAGES = ImageProcessorSpec("NougatImageProcessor", _load, content_size=_content_size, scale=_scale)
