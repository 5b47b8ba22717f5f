"""Questions as headers of pictures, as Pix2Struct was trained to read them (Lee et al., arXiv:2210.03347, §3.2).

The layout is that of transformers' image processor. The published models saw Arial, which it fetches from the Hub; a
font is taken here from the first place that has one: the model's folder (any .ttf), that fetched file, an installed
Arial or Liberation Sans, whose letters are as wide, and last the one that Pillow brings, which is told.
"""

from __future__ import annotations

import functools
import math
import textwrap
import warnings
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from vlm.errors import VlmWarning
from vlm.limits import MAX_PADDED_PIXELS

COLUMNS, SIZE, PADDING = 80, 36, 5  # letters of a line; pixels
INSTALLED = ("Arial.ttf", "arial.ttf", "Arial.TTF", "LiberationSans-Regular.ttf", "Arimo-Regular.ttf")
FETCHED = ("ybelkada/fonts", "Arial.TTF")  # where transformers has it from

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def with_header(image: Image.Image, question: str, folder: Path | None) -> Image.Image:
    """Returns an RGB picture below its question; the narrower of both is enlarged to the width of the other."""
    header = drawn_text(question, font(folder))
    width = max(header.width, image.width)
    heights = [int(each.height * (width / each.width)) for each in (header, image)]
    # patches are cut of the whole at one size: a smaller one has the same layout, and slivers are not enlarged for ever
    part = min(1.0, math.sqrt(MAX_PADDED_PIXELS / (width * sum(heights))))
    width, top, below = (max(1, int(length * part)) for length in (width, *heights))
    whole = Image.new("RGB", (width, top + below), "white")
    whole.paste(header.resize((width, top)), (0, 0))
    whole.paste(image.resize((width, below)), (0, top))
    return whole


def drawn_text(text: str, letters: Font) -> Image.Image:
    """Returns a text in black on white, in lines of 80 letters."""
    lines = "\n".join(textwrap.wrap(text, COLUMNS))
    probe = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    _, _, width, height = (math.ceil(side) for side in probe.textbbox((0, 0), lines, font=letters))
    drawn = Image.new("RGB", (width + 2 * PADDING, height + 2 * PADDING), "white")
    ImageDraw.Draw(drawn).text((PADDING, PADDING), lines, fill="black", font=letters)
    return drawn


@functools.lru_cache(maxsize=16)
def font(folder: Path | None) -> Font:
    """Returns the font of questions to the model of a folder, with a warning where it is none like Arial."""
    own = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".ttf") if folder else []
    for name in (*map(str, own), *_fetched(), *INSTALLED):
        try:
            return ImageFont.truetype(name, SIZE)
        except OSError:
            continue
    warnings.warn(
        "questions are drawn in Pillow's own font, but the published models saw Arial, and may read it less well;"
        " put Arial.ttf or LiberationSans-Regular.ttf into the model's folder, or install the Liberation fonts.",
        VlmWarning,
        stacklevel=2,
    )
    return ImageFont.load_default(SIZE)


def _fetched() -> list[str]:
    """Returns the path of the font that transformers has fetched, if it has."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(*FETCHED)
    return [path] if isinstance(path, str) else []
