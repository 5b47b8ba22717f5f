"""DeepSeek-VL's pictures: scaled to the longest side, with the mean colour around them to a square."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vlm.registry.images.processor import ImageProcessorSpec
from vlm.registry.images.shapes import pad_to_square
from vlm.registry.images.transforms import Settings, Transform

if TYPE_CHECKING:
    from PIL import Image

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # CLIP's
SMALLEST, SIZE = 14, {"height": 384, "width": 384}  # pixels: of the shorter side, of the square


def default_settings(image_size: tuple[int, int]) -> dict[str, Any]:
    """Returns the published settings, at another size."""
    size = {"height": image_size[0], "width": image_size[1]}
    return {"size": size, "min_size": SMALLEST, "image_mean": MEAN, "image_std": STD}


def squared(image: Image.Image, settings: Settings) -> Image.Image:
    """Scales a picture, and pads it: a sliver, too, keeps some pixels of its shorter side."""
    from PIL import Image

    scale = settings.get("size", SIZE)["height"] / max(image.size)
    least, colour = settings.get("min_size", SMALLEST), settings.get("image_mean", MEAN)
    width, height = (max(round(length * scale), least) for length in image.size)
    scaled = image.resize((width, height), Image.Resampling.BICUBIC)
    return pad_to_square(scaled, tuple(int(shade * 255) for shade in colour))


def normalized(name: str, settings: Settings) -> Transform:
    """Returns what makes squares pixel values [n, 3, side, side], of the settings' mean and deviation."""
    import numpy as np
    import torch

    mean, std = settings.get("image_mean", MEAN), settings.get("image_std", STD)

    def pixels(image: Image.Image) -> np.ndarray:
        return ((np.asarray(image, np.float32) / 255 - np.float32(mean)) / np.float32(std)).transpose(2, 0, 1)

    return Transform(lambda images: torch.from_numpy(np.stack([pixels(image) for image in images])))


DEEPSEEK = ImageProcessorSpec("DeepseekVLImageProcessor", normalized, default_settings, squared)
