"""The settings of a folder's image processor: where they stand, and what they may make of an image. Light: no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlm.artifacts.files import read_json
from vlm.errors import MOST_FOREIGN, VlmError, cut, listed
from vlm.limits import MAX_INPUT_SIDE
from vlm.registry.images.processor import ImageProcessorSpec
from vlm.registry.images.transforms import Settings

# where a folder keeps its settings and in which part; Hugging Face prefers what processor_config.json nests
PLACES = (("processor_config.json", "image_processor"), ("preprocessor_config.json", None))
# what transformers' classes and torch raise for settings that are none
UNFIT = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True)
class ImageSettings:
    """The settings of a folder, and the processor that they are for."""

    spec: ImageProcessorSpec
    settings: Settings
    path: Path  # their file

    def check_sizes(
        self, error: type[VlmError], image_size: tuple[int, int] | None = None, *, side_step: int = 1
    ) -> None:
        """Raises `error` for settings that scale images to more than is read, or cut them into patches that are no
        sizes, or larger than the (height, width) that the model takes, or no multiples of the pixels that its sides
        are multiples of."""
        try:
            sides = self.spec.sides(self.settings)
        except UNFIT as reason:
            raise error(self.unfit(reason)) from None
        if large := [name for name, side in sides.items() if side > MAX_INPUT_SIDE]:
            raise error(
                f"{self.path} scales images to more than {MAX_INPUT_SIDE:,} pixels a side ({listed(large)}); fetch it"
                " again."
            )
        patch = sides.get("patch_size", 0)
        cuts = f"{self.path} cuts images into patches of {patch} pixels a side, and the model"
        if image_size is not None and patch > min(image_size):
            raise error(f"{cuts} takes images of {image_size[0]} × {image_size[1]}; fetch it again.")
        if patch % side_step:
            raise error(f"{cuts} reads them by patches of {side_step}; fetch it again.")

    def unfit(self, reason: Exception) -> str:
        """Returns the sentence for settings that are none."""
        said = cut(" ".join(str(reason).split()).rstrip("."), MOST_FOREIGN)
        return f"{self.path} does not fit {self.spec.name}: {said}; fetch it again."


def image_settings(folder: Path, specs: Sequence[ImageProcessorSpec], error: type[VlmError]) -> ImageSettings | None:
    """Returns the part of processor_config.json, else preprocessor_config.json; None where there is neither.

    `specs`: a family's, of which the first is meant where the file names none. `error` says when it is damaged or names
    another one.
    """
    for name, part in PLACES:
        if not (folder / name).is_file():
            continue
        settings = read_json(folder / name, error, "model")
        if part is None or isinstance(settings.get(part), dict):
            settings = settings if part is None else settings[part]
            return ImageSettings(_spec_of(settings, specs, folder / name, error), settings, folder / name)
    return None


def _spec_of(
    settings: Settings, specs: Sequence[ImageProcessorSpec], path: Path, error: type[VlmError]
) -> ImageProcessorSpec:
    kind = processor_kind(settings) or specs[0].name
    spec = next((spec for spec in specs if spec.name == kind), None)
    if spec is None:
        raise error(f"{path} asks for {cut(kind)}; supported are {listed(spec.name for spec in specs)}.")
    return spec


def processor_kind(settings: Settings) -> str | None:
    """Returns the image processor that settings name, as transformers calls it today; None where they name none."""
    kind: Any = settings.get("image_processor_type") or settings.get("feature_extractor_type")
    if kind is None:
        return None
    return str(kind).replace("FeatureExtractor", "ImageProcessor").removesuffix("Fast").removesuffix("Pil")
