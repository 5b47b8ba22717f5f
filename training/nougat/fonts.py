"""Free font families with a regular, a bold and an italic face, found on the system."""

from __future__ import annotations

import functools
from pathlib import Path

from PIL import ImageFont

# ruff: noqa: E501
# family -> (regular, bold, italic) file stems; licence; Debian package
FAMILIES = {
    "LiberationSans": (("LiberationSans-Regular", "LiberationSans-Bold", "LiberationSans-Italic"), "OFL-1.1", "fonts-liberation"),
    "LiberationSerif": (("LiberationSerif-Regular", "LiberationSerif-Bold", "LiberationSerif-Italic"), "OFL-1.1", "fonts-liberation"),
    "DejaVuSans": (("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique"), "Bitstream Vera", "fonts-dejavu"),
    "DejaVuSerif": (("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic"), "Bitstream Vera", "fonts-dejavu"),
    "DejaVuSansCondensed": (("DejaVuSansCondensed", "DejaVuSansCondensed-Bold", "DejaVuSansCondensed-Oblique"), "Bitstream Vera", "fonts-dejavu"),
    "Roboto": (("Roboto-Regular", "Roboto-Bold", "Roboto-Italic"), "Apache-2.0", "fonts-roboto-unhinted"),
    "Carlito": (("Carlito-Regular", "Carlito-Bold", "Carlito-Italic"), "OFL-1.1", "fonts-crosextra-carlito"),
    "Caladea": (("Caladea-Regular", "Caladea-Bold", "Caladea-Italic"), "Apache-2.0", "fonts-crosextra-caladea"),
    "Lato": (("Lato-Regular", "Lato-Bold", "Lato-Italic"), "OFL-1.1", "fonts-lato"),
    "OpenSans": (("OpenSans-Regular", "OpenSans-Bold", "OpenSans-Italic"), "Apache-2.0", "fonts-open-sans"),
}  # fmt: skip
HELD_OUT = "OpenSans"  # never trained on
WITH_GREEK = {
    "LiberationSans",
    "LiberationSerif",
    "DejaVuSans",
    "DejaVuSerif",
    "DejaVuSansCondensed",
    "Roboto",
    "Carlito",
}
DEFAULT_FOLDER = Path("/usr/share/fonts")


def installed(folder: Path = DEFAULT_FOLDER) -> dict[str, dict[str, str]]:
    """Family -> {"regular" | "bold" | "italic": file}, of those with all three faces below `folder`."""
    files = {p.stem: str(p) for p in sorted(folder.rglob("*")) if p.suffix in (".ttf", ".otf")}
    faces = ("regular", "bold", "italic")
    return {
        family: {face: files[stem] for face, stem in zip(faces, stems, strict=True)}
        for family, (stems, *_) in FAMILIES.items()
        if all(stem in files for stem in stems)
    }


@functools.lru_cache(maxsize=4096)
def _font(path: str, size: float) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)


@functools.cache
def advance(path: str, size: float, character: str) -> float:
    """Width of a character, pixels."""
    return _font(path, size).getlength(character)


@functools.cache
def glyph(path: str, size: float, character: str, half: int):
    """A character's bitmap, begun on a whole or a half pixel, and its offset from the baseline origin.

    FreeType is slow and blitting is not: a page is a few hundred cached bitmaps.
    """
    return _font(path, size).getmask2(character, mode="L", anchor="ls", start=(0.5 * half, 0))
