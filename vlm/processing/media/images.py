"""Image files -> RGB pictures."""

from __future__ import annotations

import contextlib
import io
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol, runtime_checkable

import numpy as np
from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile

from vlm.artifacts.files import open_regular
from vlm.errors import MOST_LISTED, ImageError, cut
from vlm.limits import MAX_IMAGE_BYTES, MAX_PIXELS
from vlm.processing.media import libtiff
from vlm.processing.media.image_tags import check_header
from vlm.processing.media.rgb import to_rgb
from vlm.processing.media.unread import misread_tiff, unread, unread_jpeg2000, unread_tiff

FORMATS = ("PNG", "JPEG", "TIFF", "WEBP", "GIF", "BMP", "PPM", "JPEG2000")  # Pillow's other readers start programs …
_ALLOWED = "PNG, JPEG, TIFF, WebP, GIF, BMP, PPM or JPEG 2000"
_IMAGE = f"image that can be read; give {_ALLOWED}"
DOCUMENT = f"PDF and no image that can be read; give PDF, {_ALLOWED}"
_DECODING = (struct.error, zlib.error, ArithmeticError, AttributeError, RuntimeError)


class Detail(Protocol):
    """Says what is kept of a picture: how large its content is, and by which factor that is scaled (None: unknown)."""

    def content_size(self, image: Image.Image) -> tuple[int, int]: ...

    def scale(self, size: tuple[float, float]) -> float | None: ...


@runtime_checkable
class Rendered(Protocol):
    """A picture that is made when it is needed, such as a page of a PDF; with `detail` no larger than what is kept of
    it needs."""

    def picture(self, detail: Detail | None = None) -> Image.Image: ...


ImageSource = str | Path | bytes | BinaryIO | Image.Image | np.ndarray | Rendered


def load_image(
    source: ImageSource, *, max_pixels: int = MAX_PIXELS, detail: Detail | None = None, copy: bool = True
) -> Image.Image:
    """Loads any picture as RGB: turned as its EXIF data says, 16 bits scaled to 8, transparency on white, the first
    frame of several; with `detail` a Rendered one no larger than what is kept of it needs. Without `copy` a picture of
    Pillow's that is so already is the result itself.

    Raises ImageError, with the source's name, for what is missing, no image, damaged or over `max_pixels`. Takes less
    than 24 bytes of memory a pixel, beside the file's own size.
    """
    name = str(source) if isinstance(source, str | Path) else "the image"
    if isinstance(source, Rendered):
        source = source.picture(detail)
    if isinstance(source, np.ndarray):
        source = _from_array(source)
    if isinstance(source, Image.Image):
        _check_format(source, name)
        picture = decoded(source, name, max_pixels)
        return picture.copy() if copy and picture is source else picture
    with open_image(source, name) as image:
        return decoded(image, name, max_pixels)


def _check_format(image: Image.Image, name: str) -> None:
    """Refuses a picture that Pillow opened for the caller, and would decode now, by a program perhaps."""
    if image.format and image.format not in (*FORMATS, "MPO"):
        raise ImageError(f'{name} is of the format {image.format}; give {_ALLOWED}, or image.convert("RGB").')


def decoded(image: Image.Image, name: str, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Decodes a picture that may not have been read from its file yet to RGB."""
    check_size(image, name, max_pixels)
    with damage(name, image):
        if isinstance(image, TiffImageFile) and (what := misread_tiff(image.tag_v2)):
            raise ImageError(f"{name} {what}.", "unsupported")
        return to_rgb(image)


@contextlib.contextmanager
def damage(name: str, image: Image.Image | None = None) -> Iterator[None]:
    """Turns what decoders raise on damaged data, which is of many kinds, into an ImageError. `image`: of a TIFF, which
    may be sound and not be read."""
    try:
        yield
    except Image.DecompressionBombError:  # names a limit of Pillow's, not ours
        raise ImageError(f"{name} is too large; the limit is {MAX_PIXELS:,} pixels.", "too large") from None
    except MemoryError:
        raise ImageError(f"{name} takes more memory than there is; scale it down.", "memory") from None
    except (OSError, SyntaxError, ValueError, TypeError, EOFError, LookupError, *_DECODING) as error:
        if isinstance(image, TiffImageFile) and (what := unread_tiff(image.tag_v2)):
            raise ImageError(f"{name} {what}.", "unsupported") from None
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ImageError(f"{name} is a damaged or truncated image ({reason}); repair it or save it anew.") from None


@contextlib.contextmanager
def open_image(
    source: str | Path | bytes | BinaryIO, name: str, *, checked: bool = False, what: str = _IMAGE
) -> Iterator[Image.Image]:
    """Gives the image of a file, of which no more than the header was read. `checked`: its header was, before; `what`:
    what a file that is no image should be."""
    with contextlib.ExitStack() as stack:
        with damage(name):
            file = stack.enter_context(_file(source, name)) if isinstance(source, str | Path) else _stream(source)
            image = _identified(file, name, checked=checked, what=what)
            if image.format == "JPEG2000" and (sound := unread_jpeg2000(file)):
                raise ImageError(f"{name} {sound}.", "unsupported")
        yield stack.enter_context(image)


def _stream(source: bytes | BinaryIO) -> BinaryIO:
    file = io.BytesIO(source) if isinstance(source, bytes | bytearray) else source
    if not hasattr(file, "read"):
        kind = type(source).__name__
        raise ImageError(f"the image is of type {kind}; give a path, bytes, a file, a PIL image or a uint8 array.")
    try:
        is_text = isinstance(file.read(0), str)
    except (OSError, ValueError) as error:  # it is closed, or open to be written
        raise ImageError(f"the image cannot be read: {str(error).rstrip('.')}; give a file that is open.") from None
    if is_text:
        raise ImageError("the image is a file that is open as text; open it with the mode rb.")
    seekable = file.seekable() if hasattr(file, "seekable") else hasattr(file, "seek")
    return file if seekable else io.BytesIO(file.read(MAX_IMAGE_BYTES + 1))


def check_opens(path: str | Path) -> None:
    """Raises ImageError for a file that is not there, is a folder, or may not be read; what it holds is not looked
    at."""
    _file(path, str(path)).close()


def _file(path: str | Path, name: str) -> BinaryIO:
    name = cut(name, MOST_LISTED)
    if not name:
        raise ImageError("the image's name is empty; give the path of an image file.", "missing")
    if name.startswith("data:"):
        raise ImageError(f"{cut(name)} is no path; give that of an image file, or from Python its bytes.", "missing")
    try:
        return open_regular(path)
    except FileNotFoundError:
        if "://" in name:
            raise ImageError(f"{name} is an address, which is not fetched; give the path of an image file.") from None
        raise ImageError(f"{name} does not exist; give the path of an image file.", "missing") from None
    except IsADirectoryError:
        raise ImageError(f"{name} is a folder; give the path of an image file.") from None
    except OSError as error:
        raise ImageError(f"{name} cannot be read: {error.strerror or error}.") from None


def _identified(file: BinaryIO, name: str, *, checked: bool, what: str) -> Image.Image:
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    if not size:
        raise ImageError(f"{name} is empty.", "empty")
    if not checked:
        check_header(file)
    image = _opened(file, FORMATS if size <= MAX_IMAGE_BYTES else ("TIFF",))
    if image is None:
        raise _why_not(file, name, size, what)
    if image.format == "TIFF":
        libtiff.silence()
    return image


def _opened(file: BinaryIO, formats: Sequence[str]) -> Image.Image | None:
    """Opens a file by the first of these readers that takes it; None: none does. Pillow's own `open` also warns of
    images that our limit allows, and warnings are silenced for all threads at once."""
    for open_by in _readers(file, formats):
        file.seek(0)
        with contextlib.suppress(SyntaxError, IndexError, TypeError, struct.error):
            return open_by(file, "")
    return None


def _readers(file: BinaryIO, formats: Sequence[str]) -> list[Callable[[BinaryIO, str], Image.Image]]:
    """Returns those of Pillow's readers of these formats that take a file for their own by its first bytes."""
    Image.init()
    file.seek(0)
    beginning = file.read(16)
    readers = [Image.OPEN[name] for name in formats if name in Image.OPEN]
    return [open_by for open_by, accepts in readers if accepts is not None and accepts(beginning) is True]


def _why_not(file: BinaryIO, name: str, size: int, what: str) -> ImageError:
    """Returns the error of a file of so many bytes that no reader takes; `what` it should be."""
    if size > MAX_IMAGE_BYTES:
        limit = f"an image other than a TIFF may have {MAX_IMAGE_BYTES:,}"
        return ImageError(f"{name} has {size:,} bytes, {limit}; scale it down.", "too large")
    if sound := unread(file):
        return ImageError(f"{name} {sound}.", "unsupported")
    if begins_like_an_image(file):
        return ImageError(f"{name} is a damaged or truncated image; repair it or save it anew.")
    return ImageError(f"{name} is no {what}.")


def begins_like_an_image(file: BinaryIO) -> bool:
    """Says whether one of our readers takes a file for its own by its first bytes."""
    return bool(_readers(file, FORMATS))


def check_size(image: Image.Image, name: str, max_pixels: int = MAX_PIXELS) -> None:
    """Raises ImageError for a picture without pixels, or with too many."""
    width, height = image.size
    if not width or not height:
        raise ImageError(f"{name} is {width}×{height} pixels; an image has at least one.")
    if width * height > max_pixels:
        raise ImageError(f"{name} is {width}×{height} pixels, the limit is {max_pixels:,}; scale it down.", "too large")


def _from_array(array: np.ndarray) -> Image.Image:
    """Returns the image of an array [H, W] or [H, W, 3 or 4] uint8. Raises ImageError for another."""
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or 0 in array.shape:
        raise ImageError(f"the array is {array.dtype} {array.shape}; give uint8 [H, W], [H, W, 3] or [H, W, 4].")
    try:
        return Image.fromarray(array)
    except TypeError:
        raise ImageError(f"the array is {array.shape}; give [H, W], [H, W, 3] or [H, W, 4].") from None
