"""Images -> tensors, by the classes of transformers or by what has their interface. Light: no torch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vlm.requests.pixels import Normalization, pixel_values

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

Settings = Mapping[str, Any]  # of a preprocessor_config.json

# of a preprocessor_config.json, what the classes of transformers do not take
NOT_ARGUMENTS = {"image_processor_type", "feature_extractor_type", "processor_class", "_valid_processor_keys"}
COLORS = 3
LAST_BITS = 2e-6  # by which pixel values may differ whose additions and products were made in another order


@dataclass(frozen=True)
class Transform:
    """Turns RGB images into tensors [n, C, H, W]: levels uint8 for its normalization, or without one pixel values."""

    apply: Callable[[Sequence[Image.Image]], Tensor]
    normalization: Normalization | None = None

    def values(self, images: Sequence[Image.Image]) -> Tensor:
        """Returns pixel values [n, C, H, W] float32."""
        return pixel_values(self.apply(images), self.normalization)


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
