"""The images of inputs: files and pixels become images that the model takes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vlm.config import VisionConfig
from vlm.errors import InputError, LengthError
from vlm.processing.inputs.fields import InputFields, as_images, as_tensor
from vlm.processing.media.image_processor import ImageProcessor
from vlm.processing.media.images import load_image
from vlm.registry.images.processor import QuestionUse
from vlm.requests.image import Image
from vlm.requests.pixels import ImagePixels


@dataclass(frozen=True)
class ImageInputs:
    """Reads the images that inputs of one engine bring."""

    family_name: str
    vision: VisionConfig | None
    image_processor: ImageProcessor | None

    @property
    def question_use(self) -> QuestionUse | None:
        """Returns what becomes of a question about an image; None: no question is taken."""
        return None if self.image_processor is None else self.image_processor.question_use

    def check_count(self, count: int, max_tokens: int) -> None:
        """Raises LengthError for more images than so many tokens hold."""
        if self.vision is not None and (rows := count * self.vision.min_rows) > max_tokens:
            least = "" if self.vision.fixed_size else "at least "
            raise LengthError(
                f"{count} images and pages are {least}{rows:,} tokens, the engine was built for {max_tokens:,}; send"
                " fewer."
            )

    def of_prompt(self, sources: Any, pixels: Any) -> tuple[Image, ...]:
        """Returns the images of a prompt: those whose pixel values are there, else those of their sources."""
        if pixels is not None:
            return tuple(self._image(each) for each in _each(pixels))
        return tuple(self._read_image(source) for source in as_images(sources))

    def of_encoder(self, fields: InputFields) -> Image | None:
        """Returns the image that a decoder attends to; None: it is given something else."""
        if fields.images is None:
            return None if fields.pixel_values is None else self._image(fields.pixel_values)
        if len(images := as_images(fields.images)) != 1:
            raise InputError(
                f"{self.family_name} reads one image a request, got {len(images)}; pass a list of inputs:"
                ' generate(["a.png", "b.png"]).'
            )
        return self._read_image(images[0], fields.question)

    def _read_image(self, source: Any, question: str | None = None) -> Image:
        if isinstance(source, ImagePixels):  # another process has read it
            return self._image(source)
        if self.image_processor is None:
            raise InputError("this engine has no image processor; give pixel_values instead of images.")
        picture = load_image(source, detail=self.image_processor, copy=False)  # its pixels are
        return self._image(self.image_processor.read(self.image_processor.with_question(picture, question)))

    def _image(self, image: Any) -> Image:
        """Raises InputError for pixels [C, H, W] of a size that the model does not take, and for values that are not
        finite."""
        own = image if isinstance(image, ImagePixels) else as_tensor("pixel_values", image, "numbers [C, H, W]")
        shape, vision = tuple(own.pixels.shape if isinstance(own, ImagePixels) else own.shape), self.vision
        if vision is None:
            raise InputError(f"{self.family_name} takes text, not images; leave the images out.")
        if len(shape) != 3 or shape[0] != vision.num_channels or not vision.takes(*shape[1:]):
            raise InputError(f"pixel_values has shape {shape}; this model takes {vision.shapes}.")
        if isinstance(own, ImagePixels):
            return _finite(Image.from_processor(own, vision))
        return _finite(Image.from_pixels(own, vision))


def _finite(image: Image) -> Image:
    """Returns the image. Raises InputError where one of its values is NaN or infinite, in one pass over them."""
    if image.pixels.is_floating_point():  # not a picture's levels
        least, most = (value.item() for value in image.pixels.aminmax())  # either is NaN where one value is
        if not math.isfinite(least) or not math.isfinite(most):
            raise InputError("pixel_values has values that are NaN or infinite; give numbers that are finite.")
    return image


def _each(pixels: Any) -> Iterable[Any]:
    """Returns the images of pixel_values: a sequence of them, a tensor [n, C, H, W], or one alone."""
    if isinstance(pixels, ImagePixels):
        return [pixels]
    return pixels if isinstance(pixels, list | tuple) or getattr(pixels, "ndim", None) == 4 else [pixels]
