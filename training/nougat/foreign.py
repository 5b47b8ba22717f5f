"""Pages that other programs draw, in words that are never in training, read by the packaged model through vlm.

python training/nougat/foreign.py                  # reads them all and prints the error by kind
python training/nougat/foreign.py --save pages     # also writes the pages and their texts

None of the training renderer's code draws here: Pillow's own text drawing (as a script would call it), ReportLab
(`pip install reportlab`) through PDFium, and Chromium's screenshots, the latter two where they are installed.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from training.nougat.evaluate import HeldOutPage, edit_distance
from training.nougat.typesetting import fonts, text

ASSET = Path(__file__).resolve().parents[2] / "vlm" / "assets" / "mini-nougat"
SIZES = ((816, 1056), (1240, 1754), (850, 1100), (600, 800), (1000, 1000), (1056, 816))
FAMILIES = ("DejaVuSans", "DejaVuSerif", "LiberationSans", "LiberationSerif", fonts.HELD_OUT)
SIDE = 304  # of the model's image
SMALLEST, LARGEST, MOST = 7.6, 14.0, 270  # font sizes in the model's pixels; characters a page


@dataclass(frozen=True)
class ForeignPage:
    kind: str
    image: Image.Image
    text: str


class Words:
    """Held-out words in lower case, without a full stop."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.table = [word for word in text.word_table(True)[0][:1500] if word.isalpha() and word.islower()]

    def some(self, count: int) -> list[str]:
        return self.rng.choices(self.table, k=count)

    def filling(self, characters: int) -> str:
        """Words up to so many characters."""
        words = self.some(80)
        while len(" ".join(words)) > characters:
            words.pop()
        return " ".join(words)


class Sheet:
    """An image that Pillow writes lines on, from top to bottom."""

    def __init__(self, size: tuple[int, int], margin: int, paper="white", right: int | None = None):
        self.image = Image.new("RGB", size, paper)
        self.draw, self.margin, self.y, self.text = ImageDraw.Draw(self.image), margin, margin, []
        self.width = size[0] - margin - (margin if right is None else right)

    def write(self, words: str, font, spacing: float, before: str = "", ink="black") -> None:
        """A block of lines broken where the next word would cross the margin."""
        lines, line = [], ""
        for word in words.split():
            longer = f"{line} {word}".strip()
            if line and self.draw.textlength(longer, font=font) > self.width:
                lines.append(line)
                longer = word
            line = longer
        for done in [*lines, line]:
            self.draw.text((self.margin, self.y), done, font=font, fill=ink)
            self.y += round(font.size * spacing)
        self.y += round(font.size * 0.8)
        self.text.append(before + words)

    def page(self, kind: str) -> ForeignPage:
        return ForeignPage(kind, self.image, "\n\n".join(self.text))

    def room(self, font, spacing: float) -> int:
        """Characters that fit below, about."""
        width = self.draw.textlength("the quick brown fox jumps over", font=font) / 30
        lines = (self.image.height - self.margin - self.y) / (font.size * spacing)
        return int(max(0, lines - 1) * (self.width - 4 * width) / width)


def issue_pages(faces: dict, seed: int = 14, count: int = 8) -> list[ForeignPage]:
    """816×1056, a title of 40 px and text of 30 px in DejaVu Sans."""
    words, path, found = Words(random.Random(seed)), faces["DejaVuSans"]["regular"], []
    for i in range(count):
        sheet = Sheet((816, 1056), 60, right=(60, 8)[i % 2])
        sheet.write(" ".join(words.some(3)), ImageFont.truetype(path, 40), 1.4, before="# ")
        for _ in range(1 + i % 3):
            sheet.write(words.filling(words.rng.randint(50, 220 // (1 + i % 3))), ImageFont.truetype(path, 30), 1.4)
        found.append(sheet.page("Pillow, DejaVu 40/30"))
    return found


def pillow_pages(faces: dict, count: int, seed: int, kind: str, font=None, title: float = 0.5) -> list[ForeignPage]:
    """Sizes, margins, fonts and spacings at random; `font(size)` instead of the installed ones."""
    rng, found = random.Random(seed), []
    while len(found) < count:
        size = rng.choice(SIZES)
        unit = max(size) / SIDE
        pixels = round(rng.uniform(SMALLEST, LARGEST) * unit)
        path = None if font else faces[rng.choice(FAMILIES)]
        write = font or (lambda size, path=path: ImageFont.truetype(path["regular"], size))
        sheet = Sheet(size, round(min(size) * rng.uniform(0.02, 0.18)), rng.choice(("white", "white", "#fbf8ee")))
        spacing, words = rng.uniform(1.1, 1.9), Words(rng)
        ink = rng.choice(("black", "black", "#333333"))
        if rng.random() < title:
            head = ImageFont.truetype(path["bold"], round(pixels * 1.6)) if not font and rng.random() < 0.4 else None
            head = head or write(round(pixels * rng.uniform(1.3, 1.8)))
            sheet.write(" ".join(words.some(rng.randint(1, 3))), head, spacing, before="# ", ink=ink)
        for _ in range(rng.randint(1, 3)):
            room = min(sheet.room(write(pixels), spacing), MOST - len("\n\n".join(sheet.text)) - 10)
            if room > 30:
                sheet.write(words.filling(rng.randint(20, room)), write(pixels), spacing, ink=ink)
        if sheet.text and not sheet.text[-1].startswith("#"):
            found.append(sheet.page(kind))
    return found


def own_font_pages(count: int, seed: int = 22) -> list[ForeignPage]:
    """In the font that Pillow carries (Aileron), so that they can be drawn anywhere."""
    return pillow_pages({}, count, seed, "Pillow, its own font", lambda size: ImageFont.load_default(size=size))


def long_lines(faces: dict, count: int, seed: int) -> list[ForeignPage]:
    """One line from margin to edge on strips and pages, and one-word pages."""
    rng, found = random.Random(seed), []
    for i in range(count):
        size = rng.choice((*SIZES, (800, 400), (640, 480)))
        font = ImageFont.truetype(faces[rng.choice(FAMILIES)]["regular"], round(rng.uniform(8, 15) * max(size) / SIDE))
        sheet, words = Sheet(size, 0), Words(rng)
        margin = round(size[0] * rng.uniform(0.015, 0.1))
        line, room = words.some(1)[0], size[0] - margin - rng.randint(2, 12)
        while i % 4 and sheet.draw.textlength(longer := f"{line} {words.some(1)[0]}", font=font) < room:
            line = longer
        if sheet.draw.textlength(line, font=font) < room:
            sheet.draw.text((margin, rng.randint(5, size[1] // 2)), line, font=font, fill="black")
            found.append(ForeignPage("Pillow, one line", sheet.image, line))
    return found


def pillow_alone(faces: dict) -> list[ForeignPage]:
    found = issue_pages(faces) + pillow_pages(faces, 48, 21, "Pillow, any size and font")
    return found + own_font_pages(24) + long_lines(faces, 32, 23)


def pages(faces: dict, folder: Path) -> list[ForeignPage]:
    """All kinds that this machine has the programs for."""
    from training.nougat.foreign_programs import chromium_pages, reportlab_pages

    found = pillow_alone(faces)
    try:
        found += reportlab_pages(36, 24)
    except ImportError:
        print("ReportLab is not installed: no pages of it")
    if shutil.which("chromium"):
        found += chromium_pages(18, 25, folder)
    return found


def as_the_model_sees(sheets: list[ForeignPage]) -> list[HeldOutPage]:
    """The pages as NougatImageProcessor takes them in, for a model in training."""
    return [HeldOutPage(sheet.kind, _framed(sheet.image.convert("L")), sheet.text) for sheet in sheets]


def _framed(image: Image.Image) -> np.ndarray:
    """[SIDE, SIDE] uint8: the short side to SIDE, then into the frame, padded with zeros."""
    (width, height), frame = image.size, np.zeros((SIDE, SIDE), np.uint8)
    short, long = min(width, height), max(width, height)
    image = image.resize((SIDE * width // short, SIDE * height // short), Image.Resampling.BILINEAR)
    image = image.resize((SIDE * width // long, SIDE * height // long), Image.Resampling.BICUBIC)
    top, left = (SIDE - image.height) // 2, (SIDE - image.width) // 2
    frame[top : top + image.height, left : left + image.width] = np.asarray(image)
    return frame


def score(sheets: list[ForeignPage] | list[HeldOutPage], read: list[str]) -> dict[str, dict]:
    """Character errors over characters, and pages without an error, by kind."""
    rates = {}
    for kind in dict.fromkeys(sheet.kind for sheet in sheets):
        pairs = [(sheet.text, found) for sheet, found in zip(sheets, read, strict=True) if sheet.kind == kind]
        wrong = [edit_distance(wanted, found) for wanted, found in pairs]
        rates[kind] = {"pages": len(pairs), "cer": round(sum(wrong) / sum(len(wanted) for wanted, _ in pairs), 5),
                       "exact_pages": round(wrong.count(0) / len(pairs), 4)}  # fmt: skip
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini-nougat", help="the packaged model or a folder")
    parser.add_argument("--fonts", type=Path, default=fonts.DEFAULT_FOLDER)
    parser.add_argument("--save", type=Path, help="writes the pages, texts and readings here")
    parser.add_argument("--card", action="store_true", help="writes the figures into the model's eval.json and card")
    args = parser.parse_args()
    import vlm

    with tempfile.TemporaryDirectory() as folder:
        sheets = pages(fonts.installed(args.fonts), Path(folder))
    model = vlm.load(args.model, device="cpu")
    read = [
        found.text for i in range(0, len(sheets), 8) for found in model.generate([s.image for s in sheets[i : i + 8]])
    ]
    print(json.dumps(rates := score(sheets, read), indent=2))
    if args.card:
        from training.nougat.export import add_to_card

        add_to_card(ASSET, foreign=rates)
    if args.save:
        args.save.mkdir(parents=True, exist_ok=True)
        for i, (sheet, found) in enumerate(zip(sheets, read, strict=True)):
            sheet.image.save(args.save / f"{i:03}.png")
            right = "" if sheet.text == found else f"\n--- read ---\n{found}"
            (args.save / f"{i:03}.txt").write_text(f"{sheet.kind}\n{sheet.text}{right}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
