"""A page under construction: words in runs of one style, set in lines, drawn, and remembered character by character.

Coordinates are pixels of the model's image; `scale` draws the same page larger.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from PIL import Image, ImageDraw

from training.nougat.typesetting.fonts import Face, advance, glyph, shaped

BASELINE = 0.36  # of the font size, below a line's middle
MIDDLE = 0.33  # of the font size, from the baseline up to a character's middle


@dataclass
class Run:
    """Characters in one style. It reads as `before + reads + after`, where `reads` is what is drawn unless given."""

    drawn: str
    face: Face
    size: float
    dy: float = 0.0
    before: str = ""
    after: str = ""
    reads: str | None = None
    dx: float = 0.0

    def __post_init__(self) -> None:
        self.reads = self.drawn if self.reads is None else self.reads
        self.width = sum(advance(self.face, self.size, c) for c in self.drawn)


@dataclass
class Word:
    """Runs that stay together; `rules` are strokes (x0, y, x1) relative to its origin."""

    runs: list[Run]
    rules: list[tuple[float, float, float]] = field(default_factory=list)
    width: float = 0.0

    def __post_init__(self) -> None:
        if not self.width:
            for run in self.runs:
                run.dx = self.width
                self.width += run.width


class Page:
    """Places and draws words; `text` is the markdown, `places` where each of its characters is read."""

    def __init__(self, rng: random.Random, faces: dict[str, Face], size: float, width: int, height: int):
        self.rng, self.faces, self.size, self.scale = rng, faces, size, faces["regular"].scale
        self.width, self.height = width, height
        self.ink = rng.choice((1, rng.randint(1, 70)))
        paper = rng.choice((255, rng.randint(228, 255)))
        self.image = Image.new("L", (round(width * self.scale), round(height * self.scale)), paper)
        self.pen = ImageDraw.Draw(self.image)
        self._set_margins()
        self.line_height = size * (rng.uniform(1.14, 1.5) if rng.random() < 0.7 else rng.uniform(1.05, 2.0))
        self.gap = self.line_height * rng.choice((rng.uniform(0.4, 0.9), rng.uniform(0.4, 1.4)))
        self.justify = rng.random() < 0.2
        self.indent = rng.choice((0, 0, 0, 0, rng.uniform(8, 16)))
        self.ragged = rng.choice((0.0, 0.0, rng.uniform(0.0, 0.5)))
        self.pen_width = rng.choice((1.0, rng.uniform(0.25, 1.0)))
        self.curly = rng.random() < 0.3  # typographic quotes, read as plain ones
        self.y = rng.choice((rng.uniform(1, 20), rng.uniform(0.02, 0.2) * height))  # top of the next line
        self.text: list[str] = []
        self.places: list[tuple[float, float] | None] = []
        self.drawn: list[tuple[str, float, float]] = []  # characters on the page and their middles

    def _set_margins(self) -> None:
        """Narrow or up to a quarter of the page; some texts are set narrower than the page allows."""
        rng, width = self.rng, self.width
        self.left, self.right = rng.uniform(2, 22), width - rng.uniform(1, 20)
        if rng.random() < 0.4:
            self.left = width * rng.uniform(0.02, 0.22)
            self.right = width - rng.choice((self.left, width * rng.uniform(0.01, 0.22)))
        if rng.random() < 0.2:
            self.right -= (self.right - self.left) * rng.uniform(0, 0.5)

    # --- what is read ---
    def emit(self, text: str, place: tuple[float, float] | None = None) -> None:
        self.text.extend(text)
        self.places.extend([place] * len(text))

    def mark(self) -> tuple[int, int]:
        return len(self.text), len(self.drawn)

    def undo(self, mark: tuple[int, int]) -> None:
        del self.text[mark[0] :], self.places[mark[0] :], self.drawn[mark[1] :]

    def start_block(self) -> None:
        if self.text:
            self.emit("\n\n")

    # --- drawing ---
    def draw_word(self, word: Word, x: float, baseline: float) -> None:
        for run in word.runs:
            self.draw_run(run, x + run.dx, baseline + run.dy)
        for x0, dy, x1 in word.rules:
            self.stroke(x + x0, baseline + dy, x + x1, baseline + dy)

    def draw_run(self, run: Run, x: float, baseline: float) -> None:
        self._blit(self._typeset(run.drawn), run.face, run.size, x, baseline)
        middle = baseline - MIDDLE * run.size
        self.emit(run.before)
        if len(run.reads) == len(run.drawn):
            for character in run.reads:
                width = advance(run.face, run.size, character)
                self._read(character, x + width / 2, middle)
                x += width
        else:
            # one sign, several characters: \alpha
            self.emit(run.reads, (x + run.width / 2, middle))
            self.drawn.append((run.reads[-1], x + run.width / 2, middle))
        self.emit(run.after)

    def stroke(self, x0: float, y0: float, x1: float, y1: float) -> None:
        s = self.scale
        self.pen.line((x0 * s, y0 * s, x1 * s, y1 * s), fill=self.ink, width=max(1, round(s * self.pen_width)))

    def _read(self, character: str, x: float, y: float) -> None:
        self.emit(character, (x, y))
        self.drawn.append((character, x, y))

    def _typeset(self, text: str) -> str:
        if not self.curly:
            return text
        return text.replace('"', "“", 1).replace('"', "”").replace("'", "’")

    def _blit(self, text: str, face: Face, size: float, x: float, baseline: float) -> None:
        y, put, pixels = round(baseline * self.scale), self.pen.draw.draw_bitmap, face.pixels(size)
        draw, parts = (shaped, (text,)) if face.shaped else (glyph, text)
        for part in parts:
            if part != " ":
                halves = round(x * self.scale * 2)
                mask, (ox, oy) = draw(face.path, pixels, part, halves & 1)
                put(((halves >> 1) + ox, y + oy), mask, self.ink)
            if not face.shaped:
                x += advance(face, size, part)

    # --- lines ---
    def plain(
        self, text: str, face: str = "regular", size: float | None = None, before: str = "", after: str = ""
    ) -> Word:
        return Word([Run(text, self.faces[face], size or self.size, before=before, after=after)])

    def space(self, size: float | None = None) -> float:
        return advance(self.faces["regular"], size or self.size, " ")

    def wrap(self, words: list[Word], width: float, first: float = 0.0, size: float | None = None, ragged=0.0):
        """Greedy line breaking -> [(words, their width)]; None when a word is wider than the line.

        `ragged` lines end up to that part of the width early.
        """
        if any(word.width > width for word in words):
            return None
        space, lines, line, used, limit = self.space(size), [], [], first, width
        for word in words:
            if line and used + space + word.width > limit:
                lines.append((line, used))
                limit = width * (1 - ragged * self.rng.random())
                line, used = [], 0.0
            used += word.width + (space if line else 0.0)
            line.append(word)
        return [*lines, (line, used)]

    def flow(
        self, words: list[Word], x0: float, line_height: float, *, size=None, first=0.0, center=False, justify=False,
        ragged=0.0,
    ):  # fmt: skip
        """Draws words from x0 to the right margin at `y`; False, with nothing drawn, when they do not fit."""
        lines = self.wrap(words, self.right - x0, first, size, ragged)
        if lines is None or self.y + line_height * len(lines) > self.height - 4:
            return False
        for i, (line, used) in enumerate(lines):
            x = (x0 + self.right - used) / 2 if center else x0 + (first if i == 0 else 0.0)
            gap = self.space(size)
            if justify and i + 1 < len(lines) and len(line) > 2:
                gap += min(gap * 1.5, max(0.0, (self.right - x0 - used) / (len(line) - 1)))
            self._line(line, x, gap, self.y + line_height * 0.5 + (size or self.size) * BASELINE, i + 1 == len(lines))
            self.y += line_height
        return True

    def _line(self, words: list[Word], x: float, gap: float, baseline: float, last: bool) -> None:
        for i, word in enumerate(words):
            self.draw_word(word, x, baseline)
            x += word.width
            if i + 1 < len(words) or not last:
                self.emit(" ", (min(x + gap / 2, self.width - 1), baseline - MIDDLE * self.size))
            x += gap

    def block(self, words: list[Word], line_height: float | None = None, **style) -> bool:
        """A paragraph of its own; False, with nothing left behind, when it does not fit."""
        mark = self.mark()
        self.start_block()
        if self.flow(words, self.left, line_height or self.line_height, **style):
            self.y += self.gap
            return True
        self.undo(mark)
        return False
