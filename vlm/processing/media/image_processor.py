"""RGB pictures -> pixel values, by the image processor that a model was trained with, as transformers defines it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from vlm.errors import EngineError, ImageError, InputError, listed
from vlm.executor.memory import is_out_of_memory
from vlm.registry.images.processor import ImageProcessorSpec, QuestionUse
from vlm.registry.images.settings import UNFIT, image_settings
from vlm.registry.images.transforms import Settings
from vlm.requests.pixels import ImagePixels, pixel_values

if TYPE_CHECKING:
    from torch import Tensor

# what transformers' classes and torch raise for shapes that they cannot scale
UNREADABLE = (ArithmeticError, RuntimeError, ValueError)


class ImageProcessor:
    """A model folder's image processor. Used by several threads at once."""

    def __init__(self, spec: ImageProcessorSpec, settings: Settings, folder: Path | None = None):
        """`folder`: where the settings come from."""
        self.image_size: tuple[int, int] | None = None  # (height, width) that the model takes, where it is known
        self._spec, self._settings, self._folder = spec, settings, folder
        self._transform = spec.load(spec.name, settings)

    @classmethod
    def from_dir(cls, folder: Path, specs: Sequence[ImageProcessorSpec]) -> ImageProcessor | None:
        """Reads its settings as `image_settings` finds them; None where there are none. EngineError for those that are
        damaged, or for another processor than the `specs`."""
        found = image_settings(folder, specs, EngineError)
        if found is None:
            return None
        found.check_sizes(EngineError)
        try:
            return cls(found.spec, found.settings, folder)
        except UNFIT as error:
            raise EngineError(found.unfit(error)) from None

    @classmethod
    def default(cls, spec: ImageProcessorSpec, image_size: tuple[int, int]) -> ImageProcessor:
        """Returns that of a model without settings: the published ones at `image_size` (height, width)."""
        return cls(spec, spec.default_settings(image_size))

    def __call__(self, images: Sequence[Image.Image]) -> Tensor:
        """Turns RGB images into pixel values [n, 3, H, W] float32. Raises ImageError for one that comes out in another
        size than the model takes: not all settings crop, and some belong to another model."""
        return pixel_values(self._checked(images), self._transform.normalization)

    @property
    def question_use(self) -> QuestionUse | None:
        """Returns what becomes of a question about an image; None: these settings ask for none."""
        return self._spec.question_use(self._settings)

    def with_question(self, image: Image.Image, question: str | None) -> Image.Image:
        """Returns an RGB image with a request's question on it, where the model reads that there; InputError where it
        is missing then."""
        if self.question_use is not QuestionUse.DRAWN:
            return image
        if question is None:
            raise missing_question()
        return self._spec.draw_question(image, question, self._folder)

    def read(self, image: Image.Image) -> ImagePixels:
        """Turns an RGB image into what requests hold, not hashed yet. Raises ImageError as a call does."""
        pixels = self._checked([image])[0].numpy()
        return ImagePixels(pixels, self._transform.normalization, digest=None, picture_size=image.size)

    def _checked(self, images: Sequence[Image.Image]) -> Tensor:
        pixels = self._processed(images)
        if self.image_size is not None and (size := tuple(pixels.shape[2:])) != self.image_size:
            raise ImageError(
                f"the model's image processor makes {_size(size)} of this image, but the model takes"
                f" {_size(self.image_size)} (height × width); {self._next_step()}."
            )
        return pixels

    def scale(self, size: tuple[float, float]) -> float | None:
        """Returns the factor by which content of (height, width) is scaled; None where that is not known."""
        return self._spec.scale(size, self._settings)

    def content_size(self, image: Image.Image) -> tuple[int, int]:
        """Returns the (height, width) of the part of an RGB image that is scaled."""
        return self._spec.content_size(image, self._settings)

    def fits(self) -> bool:
        """Says whether an image of the model's own size comes out in that size."""
        if self.image_size is None:
            return True
        height, width = self.image_size
        pixels = self._processed([Image.new("RGB", (width, height), "white")])
        return tuple(pixels.shape[2:]) == self.image_size

    def _next_step(self) -> str:
        if self.fits():
            return "crop the image to that shape first"
        return "convert the model again with the preprocessor_config.json that belongs to it"

    def _processed(self, images: Sequence[Image.Image]) -> Tensor:
        prepared = [self._spec.prepare(image, self._settings) for image in images]
        try:
            return self._transform.apply(prepared)
        except UNREADABLE as error:
            if is_out_of_memory(error):
                raise
            sizes = listed(_size(image.size[::-1]) for image in images)
            reason = str(error).partition("\n")[0].rstrip(".")
            raise ImageError(
                f"the model's image processor cannot read an image of {sizes} (height × width: {reason}); pad or crop"
                " it."
            ) from None


def missing_question() -> InputError:
    """Returns the error of an input without the question that is drawn on its image."""
    said = "this model answers a question, which is drawn on its image; give one beside it, as `question`."
    return InputError(said, settings=("question",))


@dataclass(frozen=True)
class ProcessorSource:
    """What an image processor is made from, in this process or another."""

    folder: Path | None
    specs: tuple[ImageProcessorSpec, ...]  # the family's
    image_size: tuple[int, int]  # (height, width), where there is no folder or none in it
    fixed_size: bool = True  # whatever it makes of an image must have that size

    def load(self) -> ImageProcessor:
        """Raises EngineError for a damaged one."""
        own = ImageProcessor.from_dir(self.folder, self.specs) if self.folder else None
        processor = own or ImageProcessor.default(self.specs[0], self.image_size)
        processor.image_size = self.image_size if self.fixed_size else None
        return processor


def _size(size: tuple[int, ...]) -> str:
    return f"{size[0]}×{size[1]} pixels"
