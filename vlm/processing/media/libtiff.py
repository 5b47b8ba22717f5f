"""The library by which Pillow reads TIFFs."""

from __future__ import annotations

import contextlib
import ctypes
from functools import cache

from PIL import Image


@cache
def silence() -> None:
    """Keeps the library from writing lines to stderr, of each line of a damaged fax: callers are told in a sentence.
    Where Pillow does not show its functions, it goes on to write."""
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(Image.core.__file__)
        library.TIFFSetErrorHandler(None)
        library.TIFFSetWarningHandler(None)
