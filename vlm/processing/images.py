"""Image files -> RGB pictures."""

from __future__ import annotations

import contextlib
import io
import struct
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol, runtime_checkable

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from vlm.errors import ImageError
from vlm.limits import MAX_PIXELS

_DECODING = (struct.error, zlib.error, ArithmeticError, AttributeError, RuntimeError)


@runtime_checkable
class Rendered(Protocol):
    """A picture that is made when it is needed, such as a page of a PDF."""

    def picture(self) -> Image.Image: ...


ImageSource = str | Path | bytes | BinaryIO | Image.Image | np.ndarray | Rendered


def load_image(source: ImageSource, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Any picture as RGB: turned as its EXIF data says, 16 bits scaled to 8, transparency on white, the first frame of
    several.

    Raises ImageError, with the source's name, for what is missing, no image, damaged or over `max_pixels`.
    """
    if isinstance(source, str) and not source:
        raise ImageError("the image's name is empty; give the path of an image file.", "missing")
    name = str(source) if isinstance(source, str | Path) else "the image"
    if isinstance(source, Rendered):
        source = source.picture()
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
    except Image.DecompressionBombError:  # names a limit of Pillow's, not ours
        raise ImageError(f"{name} is too large; the limit is {MAX_PIXELS:,} pixels.", "too large") from None
    except MemoryError:
        raise ImageError(f"{name} takes more memory than there is; scale it down.", "memory") from None
    except (OSError, SyntaxError, ValueError, TypeError, EOFError, LookupError, *_DECODING) as error:
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
        if _is_empty(file):
            raise ImageError(f"{name} is empty.", "empty") from None
        raise ImageError(f"{name} is no image that can be read (PNG, JPEG, TIFF, WebP, GIF, BMP, …).") from None
    except FileNotFoundError:
        raise ImageError(f"{name} does not exist; give the path of an image file.", "missing") from None
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
        raise ImageError(f"{name} is {width}×{height} pixels, the limit is {max_pixels:,}; scale it down.", "too large")


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
