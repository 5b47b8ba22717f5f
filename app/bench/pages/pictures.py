"""Pictures of letter pages: as a renderer draws them, as a scanner sees them, and photographs."""

from __future__ import annotations

import io
import zlib
from functools import cache, lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vlm_app.bench.pages.layout import HEIGHT, LEFT, WIDTH, Line, Page, text_page
from vlm_app.bench.pages.words import Prose

POINTS = 72  # an inch
SCAN_DPI, PHOTO_DPI = 200, 300
VARIANTS = 4  # pictures that pages take turns with, each with a first line of its own
SCAN_NOISE, PHOTO_NOISE = 5.0, 5.0  # standard deviations, of 255
SCAN_QUALITY, PHOTO_QUALITY = 80, 85  # of JPEG
GRADIENTS = (((8, 6), 0.7), ((120, 90), 0.2), ((600, 450), 0.1))  # of a photograph: cells [rows, columns], weight
COLOURS = (6, 8)  # of a picture that is no page: rows and columns
PAPER, INK = (255, 255, 255), (0, 0, 0)


class Pictures:
    """Pictures of the pages of one seed. They are made by turns of a few, each page with a first line of its own."""

    def __init__(self, seed: str):
        self._seed = seed
        self._drawn, self._noisy, self._photograph = cache(self._draw), cache(self._scan), cache(self._take)

    def rendered(self, number: int, first_line: Line) -> bytes:
        """Returns a page of text as it is drawn: a PNG of 200 dpi."""
        file = io.BytesIO()
        picture = _with_line(self._drawn(number % VARIANTS), first_line, SCAN_DPI)
        picture.save(file, "PNG", compress_level=1, dpi=(SCAN_DPI, SCAN_DPI))  # thousands are written
        return file.getvalue()

    def scanned(self, number: int, first_line: Line) -> bytes:
        """Returns a page of text as a scanner sees it: a JPEG of 200 dpi."""
        return _jpeg(_with_line(self._noisy(number % VARIANTS), first_line, SCAN_DPI), SCAN_DPI, SCAN_QUALITY)

    def photographed(self, number: int, first_line: Line) -> bytes:
        """Returns a photograph of a page's size: a JPEG of 300 dpi."""
        return _jpeg(_with_line(self._photograph(number % VARIANTS), first_line, PHOTO_DPI), PHOTO_DPI, PHOTO_QUALITY)

    def _draw(self, variant: int) -> Image.Image:
        return draw_page(text_page(Prose(f"{self._seed}/{variant}")), SCAN_DPI)

    def _scan(self, variant: int) -> Image.Image:
        """Returns a page as scanned: paper is not white there, and no two pixels of it are the same."""
        page = np.asarray(self._drawn(variant), np.float32) * 0.9 + 16
        return _grainy(page, SCAN_NOISE, self._generator(variant))

    def _take(self, variant: int) -> Image.Image:
        """Returns gradients, coarse and fine, under noise."""
        generator, size = self._generator(variant), size_at(PHOTO_DPI)
        picture = np.zeros((*size[::-1], 3), np.float32)
        for cells, weight in GRADIENTS:
            colours = Image.fromarray(generator.integers(0, 256, (*cells, 3), np.uint8))
            picture += weight * np.asarray(colours.resize(size, Image.Resampling.BICUBIC), np.float32)
        return _grainy(picture, PHOTO_NOISE, generator)

    def _generator(self, variant: int) -> np.random.Generator:
        return np.random.default_rng(zlib.crc32(f"{self._seed}/{variant}".encode()))


def soft_colours(generator: np.random.Generator, size: tuple[int, int]) -> Image.Image:
    """Returns a picture of (width, height) whose random colours run into each other."""
    colours = Image.fromarray(generator.integers(0, 256, (*COLOURS, 3), np.uint8))
    return colours.resize(size, Image.Resampling.BICUBIC)


def draw_page(page: Page, dpi: int) -> Image.Image:
    """Returns its lines of text in RGB."""
    picture, scale = Image.new("RGB", size_at(dpi), PAPER), dpi / POINTS
    draw = ImageDraw.Draw(picture)
    for line in page.lines:
        _write(draw, line, scale)
    return picture


def size_at(dpi: int) -> tuple[int, int]:
    """Returns (width, height) of a letter page in pixels."""
    return WIDTH * dpi // POINTS, HEIGHT * dpi // POINTS


def _grainy(picture: np.ndarray, deviation: float, generator: np.random.Generator) -> Image.Image:
    """Maps picture [H, W, 3] float32, 0 to 255 -> the same with noise, the same of all colours"""
    grain = generator.standard_normal(picture.shape[:2], np.float32)[..., None]
    return Image.fromarray((picture + deviation * grain).clip(0, 255).astype(np.uint8))


def _jpeg(picture: Image.Image, dpi: int, quality: int) -> bytes:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality, dpi=(dpi, dpi))
    return file.getvalue()


def _with_line(picture: Image.Image, line: Line, dpi: int) -> Image.Image:
    """Returns a copy with a line of text on a strip of paper."""
    picture, scale = picture.copy(), dpi / POINTS
    top, bottom = (line.y - 1.5 * line.size) * scale, (line.y + line.size / 2) * scale
    draw = ImageDraw.Draw(picture)
    draw.rectangle((LEFT * scale, top, picture.width - LEFT * scale, bottom), fill=PAPER)
    _write(draw, line, scale)
    return picture


def _write(draw: ImageDraw.ImageDraw, line: Line, scale: float) -> None:
    width = 1 if line.bold else 0
    place = (line.x * scale, line.y * scale)
    draw.text(place, line.text, fill=INK, font=_font(line.size * scale), anchor="ls", stroke_width=width)


@lru_cache(maxsize=16)
def _font(pixels: float) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(pixels)
