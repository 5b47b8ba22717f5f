"""Image files -> RGB pictures -> pixel values."""

from __future__ import annotations

import contextlib
import io
import json
import struct
import warnings
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from vlm.errors import EngineError, ImageError

if TYPE_CHECKING:
    from torch import Tensor

MAX_PIXELS = 200_000_000  # A1 at 600 dpi; a bomb has more
_DECODING = (struct.error, zlib.error, ArithmeticError, AttributeError, RuntimeError)
ImageSource = str | Path | bytes | BinaryIO | Image.Image | np.ndarray


def load_image(source: ImageSource, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Any picture as RGB: turned as its EXIF data says, 16 bits scaled to 8, transparency on white, the first frame of
    several.

    Raises ImageError, with the source's name, for what is missing, no image, damaged or over `max_pixels`.
    """
    name = str(source) if isinstance(source, str | Path) else "the image"
    if isinstance(source, np.ndarray):
        source = _from_array(source)
    if isinstance(source, Image.Image):
        return decoded(source, name, max_pixels)
    with open_image(source, name) as image:
        return decoded(image, name, max_pixels)


def decoded(image: Image.Image, name: str, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """A picture that may not have been read from its file yet -> RGB."""
    _check_size(image, name, max_pixels)
    with damage(name):
        return to_rgb(image)


@contextlib.contextmanager
def damage(name: str) -> Iterator[None]:
    """Turns what decoders raise on damaged data, which is of many kinds, into an ImageError."""
    try:
        yield
    except Image.DecompressionBombError as error:
        raise ImageError(f"{name} is too large ({error}); the limit is {MAX_PIXELS:,} pixels.") from None
    except (OSError, SyntaxError, ValueError, TypeError, EOFError, LookupError, MemoryError, *_DECODING) as error:
        raise ImageError(f"{name} is a damaged or truncated image ({error}); repair it or save it anew.") from None


def open_image(source: str | Path | bytes | BinaryIO, name: str) -> Image.Image:
    """Reads no more than the header."""
    file = io.BytesIO(source) if isinstance(source, bytes | bytearray) else source
    if not isinstance(file, str | Path) and not hasattr(file, "read"):
        kind = type(source).__name__
        raise ImageError(f"the image is of type {kind}; give a path, bytes, a file, a PIL image or a uint8 array.")
    with warnings.catch_warnings(), damage(name):
        # our own limit decides on size, and damage is an error
        warnings.simplefilter("ignore")
        return _identified(file, name)


def _identified(file: str | Path | BinaryIO, name: str) -> Image.Image:
    try:
        return Image.open(file)
    except UnidentifiedImageError:
        kind = "empty" if _is_empty(file) else "no image that can be read (PNG, JPEG, TIFF, WebP, GIF, BMP, …)"
        raise ImageError(f"{name} is {kind}.") from None
    except FileNotFoundError:
        raise ImageError(f"{name} does not exist; give the path of an image file.") from None
    except IsADirectoryError:
        raise ImageError(f"{name} is a folder; give the path of an image file.") from None
    except OSError as error:
        if error.strerror:  # of the file system, not of the decoder
            raise ImageError(f"{name} cannot be read: {error.strerror}.") from None
        raise


def _is_empty(file: str | Path | BinaryIO) -> bool:
    if isinstance(file, io.BytesIO):
        return not file.getbuffer().nbytes
    return isinstance(file, str | Path) and not Path(file).stat().st_size


def _check_size(image: Image.Image, name: str, max_pixels: int) -> None:
    width, height = image.size
    if not width or not height:
        raise ImageError(f"{name} is {width}×{height} pixels; an image has at least one.")
    if width * height > max_pixels:
        raise ImageError(f"{name} is {width}×{height} pixels, the limit is {max_pixels:,}; scale it down.")


def _from_array(array: np.ndarray) -> Image.Image:
    """[H, W] or [H, W, 3 or 4] uint8"""
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or 0 in array.shape:
        raise ImageError(f"the array is {array.dtype} {array.shape}; give uint8 [H, W], [H, W, 3] or [H, W, 4].")
    try:
        return Image.fromarray(array)
    except TypeError:
        raise ImageError(f"the array is {array.shape}; give [H, W], [H, W, 3] or [H, W, 4].") from None


def to_rgb(image: Image.Image) -> Image.Image:
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I") or image.mode == "F":
        image = _to_8_bits(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def _to_8_bits(image: Image.Image) -> Image.Image:
    """Pillow's own conversion clips 16-bit grey to its lowest 256 values."""
    values = np.nan_to_num(np.asarray(image, dtype=np.float64))
    full = 65535.0 if image.mode.startswith("I") and values.max() > 255 else 1.0 if values.max() <= 1 else 255.0
    return Image.fromarray((values * (255.0 / full)).clip(0, 255).round().astype(np.uint8))


class ImageProcessor:
    """A model folder's image processor, as transformers defines it."""

    def __init__(self, config: dict[str, Any]):
        from transformers import NougatImageProcessor

        class Processor(NougatImageProcessor):
            def crop_margin(self, image: Tensor, gray_threshold: int = 200) -> Tensor:
                """The same box, found several times faster; keeps the margin where nothing but a sliver would be left,
                which cannot be scaled to the frame."""
                cropped = _without_margin(image, gray_threshold)
                return image if _is_sliver(*cropped.shape[-2:]) else cropped

        self._processor = Processor(**{k: v for k, v in config.items() if k not in _NOT_ARGUMENTS})

    @classmethod
    def from_dir(cls, folder: Path) -> ImageProcessor:
        """Reads preprocessor_config.json; EngineError when it is damaged or for another processor."""
        path = folder / "preprocessor_config.json"
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise EngineError(f"{path} cannot be read: {error}.") from None
        if not isinstance(config, dict):
            raise EngineError(f"{path} holds no settings; copy the file from the model's folder again.")
        kind = config.get("image_processor_type", config.get("feature_extractor_type", "NougatImageProcessor"))
        if not str(kind).startswith("Nougat"):
            raise EngineError(f"{path} asks for {kind}; supported is NougatImageProcessor.")
        return cls(config)

    @classmethod
    def default(cls, image_size: tuple[int, int]) -> ImageProcessor:
        """For a model without a processor: the published settings at `image_size` (height, width)."""
        return cls({"size": {"height": image_size[0], "width": image_size[1]}})

    def __call__(self, images: Sequence[Image.Image]) -> Tensor:
        """RGB images -> pixel values [n, 3, H, W] float32"""
        return self._processor([_widened(image) for image in images], return_tensors="pt")["pixel_values"].float()


_NOT_ARGUMENTS = {"image_processor_type", "feature_extractor_type", "processor_class", "_valid_processor_keys"}
_SLIMMEST = 64  # longest side over shortest


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


def _widened(image: Image.Image) -> Image.Image:
    """Pads slivers with white: scaled to the frame's height they would have a width of no pixel."""
    width, height = image.size
    if not _is_sliver(height, width):
        return image
    least = -(-max(width, height) // _SLIMMEST)
    padded = Image.new("RGB", (max(width, least), max(height, least)), "white")
    padded.paste(image, (0, 0))
    return padded
