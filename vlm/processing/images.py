"""Image files -> RGB pictures -> pixel values."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from vlm.errors import EngineError, ImageError

if TYPE_CHECKING:
    from torch import Tensor

MAX_PIXELS = 200_000_000  # A1 at 600 dpi; a bomb has more
ImageSource = str | Path | bytes | BinaryIO | Image.Image | np.ndarray


def load_image(source: ImageSource, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Any picture as RGB: turned as its EXIF data says, 16 bits scaled to 8, transparency on white, the first frame of
    several.

    Raises ImageError, with the source's name, for what is missing, no image, damaged or over `max_pixels`.
    """
    name = str(source) if isinstance(source, str | Path) else "the image"
    if isinstance(source, np.ndarray):
        return _from_array(source)
    if isinstance(source, Image.Image):
        return to_rgb(source)
    image = _opened(source, name)
    with image:
        _check_size(image, name, max_pixels)
        try:
            return to_rgb(image)
        # decoders raise many kinds of error on damaged data
        except (OSError, SyntaxError, ValueError, EOFError, IndexError, MemoryError) as error:
            raise _damaged(name, error) from None


def _damaged(name: str, error: Exception) -> ImageError:
    return ImageError(f"{name} is a damaged or truncated image ({error}); repair it or save it anew.")


def _opened(source: ImageSource, name: str) -> Image.Image:
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    try:
        with warnings.catch_warnings():
            # our own limit decides, in one sentence
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            return Image.open(file)
    except FileNotFoundError:
        raise ImageError(f"{name} does not exist; give the path of an image file.") from None
    except IsADirectoryError:
        raise ImageError(f"{name} is a folder; give the path of an image file.") from None
    except Image.DecompressionBombError as error:
        raise ImageError(f"{name} is too large ({error}); the limit is {MAX_PIXELS:,} pixels.") from None
    except UnidentifiedImageError:
        kind = "empty" if _is_empty(source) else "no image that can be read (PNG, JPEG, TIFF, WebP, GIF, BMP, …)"
        raise ImageError(f"{name} is {kind}.") from None
    except (OSError, ValueError, SyntaxError) as error:
        if getattr(error, "strerror", None):  # of the file system, not of the decoder
            raise ImageError(f"{name} cannot be read: {error.strerror}.") from None
        raise _damaged(name, error) from None


def _is_empty(source: ImageSource) -> bool:
    if isinstance(source, bytes):
        return not source
    return isinstance(source, str | Path) and not Path(source).stat().st_size


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
        return to_rgb(Image.fromarray(array))
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
    values = np.asarray(image, dtype=np.float64)
    full = 65535.0 if image.mode.startswith("I") and values.max() > 255 else 1.0 if values.max() <= 1 else 255.0
    return Image.fromarray((values * (255.0 / full)).clip(0, 255).round().astype(np.uint8))


class ImageProcessor:
    """A model folder's image processor, as transformers defines it."""

    def __init__(self, config: dict[str, Any]):
        from transformers import NougatImageProcessor

        class Processor(NougatImageProcessor):
            def crop_margin(self, image: Any, *args: Any, **kwargs: Any) -> Any:
                """Keeps the margin where nothing but a sliver would be left: it cannot be scaled to the frame."""
                cropped = super().crop_margin(image, *args, **kwargs)
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
        kind = config.get("image_processor_type", config.get("feature_extractor_type", "NougatImageProcessor"))
        if not kind.startswith("Nougat"):
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
