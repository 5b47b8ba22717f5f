"""What a family brings to read its images, and how pictures of extreme shapes are made fit for it. Light: no torch."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlm.limits import MAX_PADDED_PIXELS
from vlm.requests.pixels import Normalization, pixel_values

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

Settings = Mapping[str, Any]  # of a preprocessor_config.json

# of a preprocessor_config.json, what the classes of transformers do not take
NOT_ARGUMENTS = {"image_processor_type", "feature_extractor_type", "processor_class", "_valid_processor_keys"}
COLORS = 3
SLIMMEST = 64  # longest side over shortest
LONGEST_SLIVER = 2**14  # pixels: padded, it has 4 million
LAST_BITS = 2e-6  # by which pixel values may differ whose additions and products were made in another order


@dataclass(frozen=True)
class Transform:
    """Turns RGB images into tensors [n, C, H, W]: levels uint8 for its normalization, or without one pixel values."""

    apply: Callable[[Sequence[Image.Image]], Tensor]
    normalization: Normalization | None = None

    def values(self, images: Sequence[Image.Image]) -> Tensor:
        """Returns pixel values [n, C, H, W] float32."""
        return pixel_values(self.apply(images), self.normalization)


# --- what the parts of a spec are by default ---
def transformers_class(name: str, settings: Settings) -> Transform:
    """Returns what transformers' class of that name does with images. TypeError or ValueError for settings that do not
    fit it."""
    import transformers

    return transform_by(getattr(transformers, name), settings)


def pixel_tensor(processed: Mapping[str, Any], settings: Settings) -> Tensor:
    return processed["pixel_values"]


def transform_by(
    processor_class: Callable[..., Any],
    settings: Settings,
    pixels_of: Callable[[Mapping[str, Any], Settings], Tensor] = pixel_tensor,
    *,
    square: int = 8,
) -> Transform:
    """Returns what a class with the interface of transformers' image processors does with images, as levels where its
    last step is a normalization. `pixels_of`: what the class gives, and its settings -> [n, C, H, W]. `square`: pixels
    of which the sides of an image that is not scaled must be multiples."""
    processor = processor_class(**{key: value for key, value in settings.items() if key not in NOT_ARGUMENTS})
    names = ("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std")
    normalization = fused_normalization(**{name: getattr(processor, name, None) for name in names})
    probe = _probe(square)

    def transform(form: Callable[[Image.Image], Any], normalization: Normalization | None = None) -> Transform:
        """Returns the class's transform of images in a form that it takes, without a normalization that follows."""
        options: dict[str, Any] = {} if normalization is None else {"do_rescale": False, "do_normalize": False}
        if form is _planes:  # of a picture three wide they guess, and warn
            options["input_data_format"] = "channels_first"
        call = functools.partial(processor, return_tensors="pt", **options)
        return Transform(lambda images: pixels_of(call([form(image) for image in images]), settings), normalization)

    values = transform(_itself)
    expected = values.apply([probe]).float()  # settings that do not fit are told of now
    form = _planes if _takes_planes(processor, transform(_planes), probe, expected) else _itself
    levels, plain = transform(form, normalization), transform(form)
    if normalization is not None and _agree(levels, probe, expected):
        return levels
    return Transform(lambda images: plain.apply(images).float())


def _itself(image: Image.Image) -> Image.Image:
    return image


def _planes(image: Image.Image) -> Tensor:
    """Returns an RGB image as [3, H, W]. Classes of transformers do so by torch, which takes three times as long."""
    import numpy as np
    import torch

    return torch.from_numpy(np.array(np.asarray(image).transpose(2, 0, 1), order="C"))


def _takes_planes(processor: Any, transform: Transform, probe: Image.Image, expected: Tensor) -> bool:
    """Says whether a processor makes of planes what it makes of the picture."""
    if getattr(processor, "backend", None) != "torchvision":
        return False
    try:
        found = transform.apply([probe]).float()
    except Exception:  # of a class that is given what it does not take
        return False
    import torch

    return torch.equal(found, expected)


def fused_normalization(
    *, do_rescale: Any, rescale_factor: Any, do_normalize: Any, image_mean: Any, image_std: Any
) -> Normalization | None:
    """Returns the normalization that settings of transformers' make their rescaling and normalizing; None where they
    do one alone, or neither. ValueError for settings that are no numbers."""
    if not (do_rescale and do_normalize):
        return None
    import torch

    if not all(map(_is_color, (image_mean, image_std, rescale_factor))):
        raise ValueError(
            f"image_mean {image_mean}, image_std {image_std} and rescale_factor {rescale_factor} must be numbers, or"
            " one a color"
        )
    mean, std = ((torch.tensor(each) * (1.0 / rescale_factor)).reshape(-1) for each in (image_mean, image_std))
    return Normalization(tuple(mean.tolist()), tuple(std.tolist()))


def _is_color(value: Any) -> bool:
    """Says whether a setting is a number, or one for each color."""
    parts = value if isinstance(value, list | tuple) else [value]
    return 1 <= len(parts) <= COLORS and all(isinstance(part, int | float) for part in parts)


def _probe(square: int) -> Image.Image:
    """Returns a picture of many shades."""
    from PIL import Image

    width, height = 5 * square, 6 * square
    shades = [bytes((5 * x % 256, 7 * y % 256, (x * y + 40) % 256)) for y in range(height) for x in range(width)]
    return Image.frombytes("RGB", (width, height), b"".join(shades))


def _agree(levels: Transform, probe: Image.Image, expected: Tensor) -> bool:
    """Says whether levels of a picture lead to the pixel values that are expected of it."""
    import torch

    pixels = levels.apply([probe])
    is_exact = pixels.dtype == torch.uint8 and pixels.shape == expected.shape
    values = pixel_values(pixels, levels.normalization) if is_exact else expected
    return is_exact and torch.allclose(values, expected, rtol=0.0, atol=LAST_BITS)


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


def as_it_is(image: Image.Image, settings: Settings) -> Image.Image:
    """Returns the picture itself, whatever its shape."""
    return image


def pad_sliver(image: Image.Image, settings: Settings) -> Image.Image:
    """Pads slivers with white: scaled to a frame's height they would have a width of no pixel."""
    from PIL import Image

    if not is_sliver(image.height, image.width):
        return image
    image = shrink(image, LONGEST_SLIVER)
    width, height = image.size
    least = -(-max(width, height) // SLIMMEST)
    padded = Image.new("RGB", (max(width, least), max(height, least)), "white")
    padded.paste(image, (0, 0))
    return padded


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


# --- shapes ---
def is_sliver(height: int, width: int) -> bool:
    return max(height, width) > SLIMMEST * min(height, width)


def shrink(image: Image.Image, side: int) -> Image.Image:
    """Scales an image down until no side is longer."""
    from PIL import Image

    longest = max(image.size)
    if longest <= side:
        return image
    width, height = (max(1, round(length * side / longest)) for length in image.size)
    return image.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0)


def sampled(image: Image.Image, step: int) -> Image.Image:
    """Returns one pixel of `step`, in each direction."""
    from PIL import Image

    return image.resize((-(-image.width // step), -(-image.height // step)), Image.Resampling.NEAREST)


def shrink_for_square(image: Image.Image) -> Image.Image:
    """Scales an image down that, padded to a square, would have more than MAX_PADDED_PIXELS."""
    return shrink(image, max(math.isqrt(MAX_PADDED_PIXELS), math.isqrt(image.width * image.height)))


def pad_to_square(image: Image.Image, colour: tuple[int, ...]) -> Image.Image:
    """Returns the picture in the middle of a square."""
    from PIL import Image

    side = max(image.size)
    square = Image.new("RGB", (side, side), colour)
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return square
