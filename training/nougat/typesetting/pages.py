"""Whole pages by kind, and the arrays that training takes from them."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from PIL import Image

from training.nougat.typesetting import blocks, fonts
from training.nougat.typesetting.layout import Page
from training.nougat.typesetting.text import EOS, PAD, TOKEN, Writer

HEIGHT, WIDTH, STRIDE = 304, 304, 16
ROWS, COLUMNS = HEIGHT // STRIDE, WIDTH // STRIDE  # encoder cells
MAX_TOKENS = 288
KINDS = ("paragraphs", "headings", "list", "bold", "math", "table", "mixed")
DENSE = 3  # characters remembered of a cell


@dataclass(frozen=True)
class Sample:
    """A page as the model sees it, what it reads as, and where."""

    image: np.ndarray  # [HEIGHT, WIDTH] uint8, padded with zeros as NougatImageProcessor does
    text: str
    page: Page
    left: int  # of the page in the image
    top: int


class Renderer:
    """Draws random pages in the installed fonts."""

    def __init__(self, faces: dict[str, dict[str, str]]):
        self.faces = faces
        self.training = sorted(f for f in faces if f != fonts.HELD_OUT)

    def _family(self, rng: random.Random) -> str:
        name = rng.choice(self.training)
        return rng.choice(self.training) if name in fonts.MONOSPACED else name

    def _faces(self, rng: random.Random, family: str, scale: float) -> dict[str, fonts.Face]:
        shaped = fonts.HAS_SHAPING and rng.random() < 0.2
        linear = not shaped and scale > 1 and rng.random() < 0.5
        return {face: fonts.Face(path, scale, linear, shaped) for face, path in self.faces[family].items()}

    def sample(
        self, rng: random.Random, kind: str, *, max_chars: int = 285, held_out: bool = False, family: str | None = None,
        scale: float | None = None, lines: int = 0,
    ) -> Sample:  # fmt: skip
        """A page of one kind that fits the decoder. `lines` asks for one short paragraph instead (the curriculum)."""
        while True:
            name = family or self._family(rng)
            width, height = _size(rng)
            larger = scale or _scale(rng)
            page = Page(rng, self._faces(rng, name, larger), _font_size(rng, larger), width, height)
            writer, greek = Writer(rng, held_out), name not in fonts.WITHOUT_GREEK
            if lines:
                page.y = rng.uniform(4, max(4, height - 4 - page.line_height * (lines + 0.5)))
                blocks.paragraph(page, writer, rng.randint(1, 4 * lines))
            else:
                _fill(page, writer, kind, max_chars, greek)
            if page.text and len(page.text) <= MAX_TOKENS - 2:
                return _padded(page)

    def curriculum(self, rng: random.Random, progress: float) -> Sample:
        """Lines at first, then short pages, then whole pages with some short ones kept."""
        now = stage(progress)
        if now == 0 or (now == 1 and rng.random() < 0.5):
            return self.sample(rng, "paragraphs", lines=rng.randint(1, 4), scale=1)
        if rng.random() < 0.06:
            return self.sample(rng, "paragraphs", lines=rng.randint(1, 2))
        short = rng.random() < (0.6 if now == 2 else 0.12)
        return self.sample(rng, rng.choice(KINDS), max_chars=rng.randint(40, 160) if short else rng.randint(180, 285))


def _scale(rng: random.Random) -> float:
    """Draws how many times the model's image a page is drawn: few are drawn small, an A4 page at 150 dots an inch
    is six times."""
    chance = rng.random()
    return 1 if chance < 0.25 else 2 if chance < 0.4 else rng.uniform(1.2, 4.2)


def _font_size(rng: random.Random, scale: float) -> float:
    """In the model's pixels; whole or half pixels of the drawing. Text much smaller cannot be read."""
    size = rng.uniform(7.4, 11.5) if rng.random() < 0.55 else rng.uniform(11, 17)
    return fonts.whole_pixels(size * scale) / scale


STAGES = (0.02, 0.045, 0.09)  # of the schedule


def stage(progress: float) -> int:
    """Pages of different stages are not mixed in a batch."""
    return sum(progress >= border for border in STAGES)


def _size(rng: random.Random) -> tuple[int, int]:
    """Width and height: one side always fills the image."""
    chance = rng.random()
    if chance < 0.25:
        return WIDTH, HEIGHT
    if chance < 0.55:  # A4, letter
        return rng.choice((215, 235)), HEIGHT
    if chance < 0.6:  # a strip
        return WIDTH, rng.randint(60, 220)
    return (WIDTH, rng.randint(220, HEIGHT - 1)) if chance < 0.77 else (rng.randint(195, WIDTH - 1), HEIGHT)


def _padded(page: Page) -> Sample:
    """As NougatImageProcessor takes it in: the short side to the image's, into the frame, padded with zeros."""
    drawn, short = page.image, min(page.width, page.height)
    resized = (max(WIDTH, WIDTH * page.width // short), max(HEIGHT, WIDTH * page.height // short))
    if drawn.size != resized:
        drawn = drawn.resize(resized, Image.Resampling.BILINEAR)
    if drawn.size != (page.width, page.height):
        drawn = drawn.resize((page.width, page.height), Image.Resampling.BICUBIC)
    image = np.zeros((HEIGHT, WIDTH), np.uint8)
    top, left = (HEIGHT - page.height) // 2, (WIDTH - page.width) // 2
    image[top : top + page.height, left : left + page.width] = np.asarray(drawn)
    return Sample(image, "".join(page.text), page, left, top)


def _fill(page: Page, writer: Writer, kind: str, max_chars: int, greek: bool) -> None:
    rng = page.rng
    if max_chars < 200 and rng.random() < 0.6:
        page.y = rng.uniform(4, page.height * 0.6)
    left = lambda: max_chars - len(page.text)  # noqa: E731
    words = lambda low, high: max(3, min(int(left() * rng.uniform(low, high) / 6.6), 40))  # noqa: E731
    if kind == "paragraphs":
        for _ in range(rng.randint(1, 3)):
            blocks.paragraph(page, writer, words(0.3, 0.85))
    elif kind == "headings":
        blocks.heading(page, writer, rng.choice((1, 1, 2)))
        blocks.paragraph(page, writer, words(0.25, 0.45))
        if left() > 80:
            blocks.heading(page, writer, 2)
            blocks.paragraph(page, writer, words(0.4, 0.8))
    elif kind == "list":
        _opening(page, writer, words(0.15, 0.35), rng.random() < 0.7)
        blocks.bullets(page, blocks.random_items(writer, rng.randint(2, max(2, min(6, left() // 30)))))
        _closing(page, writer, words(0.4, 0.7), left() > 60 and rng.random() < 0.6)
    elif kind == "bold":
        for _ in range(rng.randint(1, 2)):
            blocks.paragraph(page, writer, words(0.35, 0.75), bold=rng.randint(1, 3))
    elif kind == "math":
        blocks.paragraph(page, writer, words(0.2, 0.4), math=rng.randint(0, 2), greek=greek)
        blocks.display(page, greek)
        if left() > 60:
            blocks.paragraph(page, writer, words(0.3, 0.6), math=rng.randint(0, 2), greek=greek)
    elif kind == "table":
        _opening(page, writer, words(0.15, 0.35), True)
        columns = rng.randint(2, 3)
        rows = rng.randint(2, max(2, min(5, (left() - 20) // (columns * 9))))
        blocks.table(page, blocks.random_grid(writer, rows, columns))
        _closing(page, writer, words(0.4, 0.7), left() > 50 and rng.random() < 0.5)
    else:
        _mixture(page, writer, left, words, greek)


def _opening(page: Page, writer: Writer, length: int, with_paragraph: bool) -> None:
    if page.rng.random() < 0.4:
        blocks.heading(page, writer, page.rng.choice((1, 2)))
    if with_paragraph:
        blocks.paragraph(page, writer, length)


def _closing(page: Page, writer: Writer, length: int, wanted: bool) -> None:
    if wanted:
        blocks.paragraph(page, writer, length)


def _mixture(page: Page, writer: Writer, left, words, greek: bool) -> None:
    rng = page.rng
    if rng.random() < 0.6:
        blocks.heading(page, writer, rng.choice((1, 1, 2)))
    for _ in range(rng.randint(2, 4)):
        if left() < 60:
            return
        chance = rng.random()
        if chance < 0.35:
            blocks.paragraph(page, writer, words(0.3, 0.6), bold=rng.randint(0, 1), math=rng.randint(0, 1), greek=greek)
        elif chance < 0.55:
            blocks.bullets(page, blocks.random_items(writer, rng.randint(2, max(2, min(4, left() // 30)))))
        elif chance < 0.75:
            blocks.table(page, blocks.random_grid(writer, rng.randint(2, 3), 2))
        elif chance < 0.9:
            blocks.display(page, greek)
        else:
            blocks.heading(page, writer, 2)


def encode(sample: Sample) -> dict[str, np.ndarray]:
    """Training arrays: image; tokens [MAX_TOKENS]; cells [MAX_TOKENS], the encoder cell each token is read in (-1:
    nowhere); dense [cells, DENSE], characters that lie in each cell, from left to right."""
    text, places = sample.text, sample.page.places
    tokens, cells = np.full(MAX_TOKENS, PAD, np.int16), np.full(MAX_TOKENS, -1, np.int16)
    tokens[: len(text)] = [TOKEN[c] for c in text]
    tokens[len(text)] = EOS
    cells[: len(text)] = [-1 if p is None else _cell(sample, *p) for p in places]
    _look_ahead(cells, len(text))
    dense = np.full((ROWS * COLUMNS, DENSE), PAD, np.uint8)
    count = np.zeros(ROWS * COLUMNS, np.int8)
    for character, x, y in sorted(sample.page.drawn, key=lambda d: d[1]):
        cell = _cell(sample, x, y)
        if count[cell] < DENSE and character in TOKEN:
            dense[cell, count[cell]] = TOKEN[character]
            count[cell] += 1
    return {"image": sample.image, "tokens": tokens, "cells": cells, "dense": dense}


def _cell(sample: Sample, x: float, y: float) -> int:
    column = min(max(int((x + sample.left) // STRIDE), 0), COLUMNS - 1)
    return min(max(int((y + sample.top) // STRIDE), 0), ROWS - 1) * COLUMNS + column


def _look_ahead(cells: np.ndarray, length: int) -> None:
    """Marks such as ** and | are read where the next drawn character stands."""
    following = -1
    for i in range(length - 1, -1, -1):
        if cells[i] < 0:
            cells[i] = following
        else:
            following = cells[i]
