"""Free font families with a regular, a bold and an italic face, found on the system."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from PIL import ImageFont, features

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
    "LiberationMono": (("LiberationMono-Regular", "LiberationMono-Bold", "LiberationMono-Italic"), "OFL-1.1", "fonts-liberation"),
    "DejaVuSansMono": (("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique"), "Bitstream Vera", "fonts-dejavu"),
    "FreeSans": (("FreeSans", "FreeSansBold", "FreeSansOblique"), "GPL-3.0 with font exception", "fonts-freefont-ttf"),
    "FreeSerif": (("FreeSerif", "FreeSerifBold", "FreeSerifItalic"), "GPL-3.0 with font exception", "fonts-freefont-ttf"),
    "NimbusSans": (("NimbusSans-Regular", "NimbusSans-Bold", "NimbusSans-Italic"), "AGPL-3.0 with font exception", "fonts-urw-base35"),
    "NimbusRoman": (("NimbusRoman-Regular", "NimbusRoman-Bold", "NimbusRoman-Italic"), "AGPL-3.0 with font exception", "fonts-urw-base35"),
    "P052": (("P052-Roman", "P052-Bold", "P052-Italic"), "AGPL-3.0 with font exception", "fonts-urw-base35"),
    "C059": (("C059-Roman", "C059-Bold", "C059-Italic"), "AGPL-3.0 with font exception", "fonts-urw-base35"),
    "OpenSans": (("OpenSans-Regular", "OpenSans-Bold", "OpenSans-Italic"), "Apache-2.0", "fonts-open-sans"),
}  # fmt: skip
HELD_OUT = "OpenSans"  # never trained on
WITHOUT_GREEK = {"Caladea", "Lato"}
MONOSPACED = {"LiberationMono", "DejaVuSansMono"}  # drawn seldom
DEFAULT_FOLDER = Path("/usr/share/fonts")
LARGE = 256  # pixels at which hints no longer move anything
HAS_SHAPING = features.check("raqm")


class Faces(dict[str, dict[str, str]]):
    """Family -> {"regular" | "bold" | "italic": file}. Ends the program with a sentence for a family that it lacks."""

    def __missing__(self, family: str) -> NoReturn:
        raise SystemExit(
            f"{family} was not found with its three faces; apt-get install {FAMILIES[family][2]}, or give --fonts FOLDER."
        )


def installed(folder: Path = DEFAULT_FOLDER) -> Faces:
    """Returns the families with all three faces below `folder`."""
    files = {p.stem: str(p) for p in sorted(folder.rglob("*")) if p.suffix in (".ttf", ".otf")}
    faces = ("regular", "bold", "italic")
    return Faces(
        (family, {face: files[stem] for face, stem in zip(faces, stems, strict=True)})
        for family, (stems, *_) in FAMILIES.items()
        if all(stem in files for stem in stems)
    )


def whole_pixels(size: float) -> float:
    """The size in whole pixels, in half ones where it is small."""
    return round(size) if size > 20 else round(size * 2) / 2


@dataclass(frozen=True)
class Face:
    """A font file as one page sets it: sizes are the model's pixels, drawn `scale` times as large.

    Advances are whole pixels of the drawing where the font's hints say so (Pillow) or proportional to the size (PDF).
    `shaped` words are set with kerning and ligatures.
    """

    path: str
    scale: float = 1.0
    linear: bool = False
    shaped: bool = False

    def pixels(self, size: float) -> float:
        """The drawn size of a font size."""
        return whole_pixels(size * self.scale)


@functools.lru_cache(maxsize=16384)
def _font(path: str, pixels: float, engine=ImageFont.Layout.BASIC) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(path, pixels, layout_engine=engine)


@functools.cache
def _advance(path: str, pixels: float, character: str, linear: bool) -> float:
    if linear:
        return _font(path, LARGE).getlength(character) * pixels / LARGE
    return _font(path, pixels).getlength(character)


def advance(face: Face, size: float, character: str) -> float:
    """Width of a character in the model's pixels."""
    return _advance(face.path, face.pixels(size), character, face.linear) / face.scale


@functools.lru_cache(maxsize=400_000)
def glyph(path: str, pixels: float, character: str, half: int):
    """A character's bitmap, begun on a whole or a half pixel, and its offset from the baseline origin.

    FreeType is slow and blitting is not: a page is a few hundred cached bitmaps.
    """
    return _font(path, pixels).getmask2(character, mode="L", anchor="ls", start=(0.5 * half, 0))


def shaped(path: str, pixels: float, word: str, half: int):
    """A whole word's bitmap, with kerning and ligatures, as `glyph`."""
    font = _font(path, pixels, ImageFont.Layout.RAQM)
    return font.getmask2(word, mode="L", anchor="ls", start=(0.5 * half, 0))
