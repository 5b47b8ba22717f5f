"""Nougat's image processor: transformers' levels, several times faster, and without what its class imports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from visual_engines.images.levels import BILINEAR, resized, to_levels
from visual_engines.images.page_margin import THRESHOLD, content_box
from vlm.registry.images.processor import ImageProcessorSpec
from vlm.registry.images.shapes import is_sliver, sampled
from vlm.registry.images.transforms import NOT_ARGUMENTS, Settings, Transform, fused_normalization, transform_by

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image
    from torch import Tensor

SAMPLED = 500  # pixels of the shorter side, or some more, tell how large the content is
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
        import numpy as np
        import torch

        return torch.stack([self._processed(np.asarray(image)) for image in images])

    def _processed(self, picture: np.ndarray) -> Tensor:
        frame = self.size["height"], self.size["width"]
        page = to_levels(_cropped(picture) if self.do_crop_margin else picture)
        if self.do_align_long_axis:
            page = _aligned(page, frame)
        if self.do_resize:
            page = resized(page, _with_short_side(page, min(frame)), "bilinear")
        if self.do_thumbnail:
            page = resized(page, _within(page, frame), "bicubic")
        return (_padded(page, frame) if self.do_pad else page)[0].contiguous()


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
        isinstance(size, Mapping)
        and set(size) == {"height", "width"}
        and all(isinstance(side, int) and side > 0 for side in size.values())
    )


def _by_transformers(settings: Settings) -> Transform:
    """Returns what transformers' class does, for settings of another form."""
    from transformers import NougatImageProcessor

    class Processor(NougatImageProcessor):
        def crop_margin(self, image: Tensor, gray_threshold: int = THRESHOLD) -> Tensor:
            return to_levels(_cropped(image.permute(1, 2, 0).contiguous().numpy()))[0]

        def align_long_axis(self, image: Tensor, size: Any) -> Tensor:  # the class's own turns colors into rows
            return _aligned(image, (size.height, size.width))

    return transform_by(Processor, settings)


def _cropped(picture: np.ndarray) -> np.ndarray:
    """Cuts the margin off; keeps it where nothing but a sliver would be left, which cannot be scaled to the frame."""
    box = content_box(picture)
    return picture if box is None or is_sliver(*picture[box].shape[:2]) else picture[box]


def _aligned(page: Tensor, frame: tuple[int, int]) -> Tensor:
    """Turns pages whose longer side is not the frame's."""
    lies_across = (frame[0] - frame[1]) * (page.shape[2] - page.shape[3]) < 0
    return page.rot90(3, dims=(2, 3)) if lies_across else page


def _with_short_side(page: Tensor, side: int) -> tuple[int, int]:
    """Returns the (height, width) that scales the shorter side to this."""
    height, width = page.shape[2:]
    long = int(side * max(height, width) / min(height, width))
    return (long, side) if width <= height else (side, long)


def _within(page: Tensor, frame: tuple[int, int]) -> tuple[int, int]:
    """Returns the (height, width) that no longer passes the frame on a side."""
    height, width = page.shape[2:]
    within = min(height, frame[0]), min(width, frame[1])
    if within == (height, width):
        return within
    if height > width:
        return within[0], int(width * within[0] / height)
    return (int(height * within[1] / width), within[1]) if width > height else within


def _padded(page: Tensor, frame: tuple[int, int]) -> Tensor:
    """Puts a page into the middle of the frame."""
    from torch.nn.functional import pad

    down, across = frame[0] - page.shape[2], frame[1] - page.shape[3]
    return pad(page, (across // 2, across - across // 2, down // 2, down - down // 2))


def _content_size(image: Image.Image, settings: Settings) -> tuple[int, int]:
    """Returns the size without the margin, to within a few pixels: it is looked for in a sample of its pixels."""
    if not settings.get("do_crop_margin", True):
        return image.height, image.width
    import numpy as np

    for step in (max(1, min(image.size) // SAMPLED), 1):  # a dot may lie between the pixels of a sample
        picture = np.asarray(sampled(image, step))
        if box := content_box(picture):
            height, width = picture[box].shape[:2]
            return height * step, width * step
    return image.height, image.width


def _scale(size: tuple[float, float], settings: Settings) -> float | None:
    """Returns the factor that brings the shorter side to the frame's; the longer one may be scaled further down."""
    frame = settings.get("size")
    if not settings.get("do_resize", True) or not isinstance(frame, Mapping) or not {"height", "width"} <= set(frame):
        return None
    return min(frame["height"], frame["width"]) / min(size)


NOUGAT_IMAGES = ImageProcessorSpec("NougatImageProcessor", _load, content_size=_content_size, scale=_scale)
