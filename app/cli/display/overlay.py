"""`vlm run --save-overlay`: an image with what a model found in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlm.errors import InputError
from vlm_app.core.overlay import draw, regions_of

if TYPE_CHECKING:
    from vlm.api.pipeline import Output

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


def check_overlay(path: Path, num_images: int) -> None:
    """Raises InputError, before a model is loaded, for what cannot be drawn, or not written there."""
    if num_images != 1:
        raise InputError(f"--save-overlay draws on one image, got {num_images}; give one --image, without --chat.")
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"--save-overlay {path} names no kind of image; end it with {' or '.join(SUFFIXES)}.")
    if not path.absolute().parent.is_dir():
        raise InputError(f"--save-overlay {path} lies in no folder that exists; make it first.")


def save_overlay(path: Path, fields: Mapping[str, Any], output: Output) -> None:
    """Writes an input's image with what the output says of its regions. Raises InputError where that is nothing."""
    from vlm.processing.media.images import load_image

    if (answer := regions_of(output.text)) is None:
        raise InputError("the answer names no places in the image; --save-overlay is for tasks like OD.")
    picture = load_image(fields["images"][0])
    draw(picture, answer)
    try:
        picture.save(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}.") from None
