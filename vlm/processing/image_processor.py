"""RGB pictures -> pixel values, by the image processor that a model was trained with, as transformers defines it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from vlm.artifacts.files import load_json
from vlm.errors import EngineError, ImageError, listed
from vlm.limits import MAX_INPUT_SIDE, MAX_PADDED_PIXELS

if TYPE_CHECKING:
    from torch import Tensor

KINDS = (
    "NougatImageProcessor",
    "CLIPImageProcessor",
    "BlipImageProcessor",
    "SiglipImageProcessor",
    "LlavaImageProcessor",
)
# where a folder keeps its settings and in which part; Hugging Face prefers what processor_config.json nests
PLACES = (("processor_config.json", "image_processor"), ("preprocessor_config.json", None))
_NOT_ARGUMENTS = {
    "image_processor_type",
    "feature_extractor_type",
    "processor_class",
    "_valid_processor_keys",
    "pad_to_square",
}


class ImageProcessor:
    """A model folder's image processor. Used by several threads at once."""

    def __init__(self, config: dict[str, Any], kind: str = KINDS[0]):
        import transformers

        self.image_size: tuple[int, int] | None = None  # (height, width) that the model takes, where it is known

        made = _nougat() if kind == "NougatImageProcessor" else getattr(transformers, kind)
        self._processor = made(**{k: v for k, v in config.items() if k not in _NOT_ARGUMENTS})
        mean = config.get("image_mean") or (0.5, 0.5, 0.5)
        self._border = tuple(int(x * 255) for x in mean) if config.get("pad_to_square") else None
        self._squares = self._border is not None or (kind == "LlavaImageProcessor" and bool(config.get("do_pad")))

    @classmethod
    def from_dir(cls, folder: Path, kind: str = KINDS[0]) -> ImageProcessor | None:
        """Reads its part of processor_config.json, else preprocessor_config.json; None where there is neither.

        `kind`: what it is where the file does not say. EngineError when it is damaged or for a processor not known.
        """
        for name, part in PLACES:
            if not (folder / name).is_file():
                continue
            config = _read(folder / name)
            if part is None or isinstance(config.get(part), dict):
                return cls._from_settings(config if part is None else config[part], folder / name, kind)
        return None

    @classmethod
    def _from_settings(cls, config: dict[str, Any], path: Path, kind: str) -> ImageProcessor:
        named = processor_kind(config) or kind
        if named not in KINDS:
            raise EngineError(f"{path} asks for {named}; supported are {listed(KINDS)}.")
        if large := [name for name in ("size", "crop_size", "pad_size") if _largest(config.get(name)) > MAX_INPUT_SIDE]:
            raise EngineError(
                f"{path} scales images to more than {MAX_INPUT_SIDE:,} pixels a side ({listed(large)}); fetch it again."
            )
        try:
            return cls(config, named)
        except (TypeError, ValueError) as error:
            raise EngineError(f"{path} does not fit {named}: {error}".rstrip(".") + ".") from None

    @classmethod
    def default(cls, image_size: tuple[int, int], kind: str = KINDS[0]) -> ImageProcessor:
        """For a model without a processor: the published settings at `image_size` (height, width)."""
        size = {"height": image_size[0], "width": image_size[1]}
        if kind == "CLIPImageProcessor":
            return cls({"size": {"shortest_edge": min(image_size)}, "crop_size": size}, kind)
        return cls({"size": size}, kind)

    def __call__(self, images: Sequence[Image.Image]) -> Tensor:
        """RGB images -> pixel values [n, 3, H, W] float32. Raises ImageError for one that comes out in another size
        than the model takes: not all settings crop, and some belong to another model."""
        pixels = self._processed(images)
        if self.image_size is not None and (made := tuple(pixels.shape[2:])) != self.image_size:
            raise ImageError(
                f"the model's image processor makes {_size(made)} of this image, but the model takes"
                f" {_size(self.image_size)} (height × width); {self._next_step()}."
            )
        return pixels

    def fits(self) -> bool:
        """Says whether an image of the model's own size comes out in that size."""
        return self.image_size is None or self._made_size() == self.image_size

    def _made_size(self) -> tuple[int, ...]:
        height, width = self.image_size
        return tuple(self._processed([Image.new("RGB", (width, height), "white")]).shape[2:])

    def _next_step(self) -> str:
        if self.fits():
            return "crop the image to that shape first"
        return "convert the model again with the preprocessor_config.json that belongs to it"

    def _processed(self, images: Sequence[Image.Image]) -> Tensor:
        images = [self._padded(image) for image in images]
        return self._processor(images, return_tensors="pt")["pixel_values"].float()

    def _padded(self, image: Image.Image) -> Image.Image:
        """Pads as the processor does or needs it; what would become too large is scaled down first."""
        if self._squares:
            image = _shortened(image, max(math.isqrt(MAX_PADDED_PIXELS), math.isqrt(image.width * image.height)))
        return _widened(image) if self._border is None else _square(image, self._border)


def processor_kind(config: dict[str, Any]) -> str | None:
    """Returns the image processor that settings name, as transformers calls it today; None where they name none."""
    named = config.get("image_processor_type") or config.get("feature_extractor_type")
    if named is None:
        return None
    return str(named).replace("FeatureExtractor", "ImageProcessor").removesuffix("Fast").removesuffix("Pil")


@dataclass(frozen=True)
class ProcessorSource:
    """What an image processor is made from, in this process or another."""

    folder: Path | None
    kind: str  # where the folder does not say
    image_size: tuple[int, int]  # (height, width), where there is no folder or none in it
    fixed_size: bool = True  # whatever it makes of an image must have that size

    def load(self) -> ImageProcessor:
        """Raises EngineError for a damaged one."""
        found = ImageProcessor.from_dir(self.folder, self.kind) if self.folder else None
        processor = found or ImageProcessor.default(self.image_size, self.kind)
        processor.image_size = self.image_size if self.fixed_size else None
        return processor


def _size(size: tuple[int, ...]) -> str:
    return f"{size[0]}×{size[1]} pixels"


def _square(image: Image.Image, colour: tuple[int, ...]) -> Image.Image:
    """The picture in the middle of a square."""
    side = max(image.size)
    square = Image.new("RGB", (side, side), colour)
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return square


def _read(path: Path) -> dict[str, Any]:
    try:
        config = load_json(path)
    except (OSError, ValueError) as error:
        raise EngineError(f"{path} cannot be read: {error}.") from None
    if not isinstance(config, dict):
        raise EngineError(f"{path} holds no settings; copy the file from the model's folder again.")
    return config


def _largest(size: Any) -> float:
    """Returns the largest number of a size, which is one or a mapping of several."""
    values = size.values() if isinstance(size, dict) else [size]
    return max((value for value in values if isinstance(value, int | float)), default=0)


def _nougat() -> type:
    from transformers import NougatImageProcessor

    class Processor(NougatImageProcessor):
        def crop_margin(self, image: Tensor, gray_threshold: int = 200) -> Tensor:
            """The same box, found several times faster; keeps the margin where nothing but a sliver would be left,
            which cannot be scaled to the frame."""
            cropped = _without_margin(image, gray_threshold)
            return image if _is_sliver(*cropped.shape[-2:]) else cropped

    return Processor


_SLIMMEST = 64  # longest side over shortest
_LONGEST_SLIVER = 2**14  # pixels: padded, it has 4 million


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


def _ends(marked: Tensor) -> tuple[int, int]:
    found = marked.nonzero()[:, 0]
    return int(found[0]), int(found[-1])


def _is_sliver(height: int, width: int) -> bool:
    return max(height, width) > _SLIMMEST * min(height, width)


def _shortened(image: Image.Image, side: int) -> Image.Image:
    """Scales an image down until no side is longer."""
    longest = max(image.size)
    if longest <= side:
        return image
    width, height = (max(1, round(length * side / longest)) for length in image.size)
    return image.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0)


def _widened(image: Image.Image) -> Image.Image:
    """Pads slivers with white: scaled to the frame's height they would have a width of no pixel."""
    if not _is_sliver(image.height, image.width):
        return image
    image = _shortened(image, _LONGEST_SLIVER)
    width, height = image.size
    least = -(-max(width, height) // _SLIMMEST)
    padded = Image.new("RGB", (max(width, least), max(height, least)), "white")
    padded.paste(image, (0, 0))
    return padded
