"""Letter pages as lines of text and rules at their places, which PDFs and pictures are made from alike."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field

from vlm_app.bench.pages.words import Prose

WIDTH, HEIGHT = 612, 792  # of a letter page, points
LEFT, TOP, RIGHT, BOTTOM = 72.0, 60.0, 540.0, 736.0
TITLE, HEADING, BODY, SMALL = 18.0, 13.0, 10.5, 9.0  # sizes of letters, points
LEADING = 1.25  # heights of a letter from line to line
EM = 0.47  # mean width of a letter of Helvetica in its height
COLUMNS, ROWS, ROW_HEIGHT = 5, 28, 18.0  # of a table


@dataclass(frozen=True)
class Line:
    """Text; `x` and `y`: where its baseline begins, in points from the page's top left corner."""

    text: str
    x: float
    y: float
    size: float
    bold: bool = False


@dataclass(frozen=True)
class Rule:
    """A straight line between two places."""

    x0: float
    y0: float
    x1: float
    y1: float


@dataclass
class Page:
    """What stands on a page."""

    lines: list[Line] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    y: float = TOP  # down to here it is written

    def write(self, text: str, size: float, *, bold: bool = False) -> None:
        """Writes a paragraph below what is there, as much of it as there is room for."""
        for line in textwrap.wrap(text, width=int((RIGHT - LEFT) / (EM * size))):
            if self.y + LEADING * size > BOTTOM:
                return
            self.y += LEADING * size
            self.lines.append(Line(line, LEFT, self.y, size, bold))
        self.y += size / 2

    @property
    def has_room(self) -> bool:
        """Says whether a heading and two lines go onto it."""
        return self.y + LEADING * (HEADING + 2 * BODY) + HEADING / 2 <= BOTTOM


def label(document: str, page: int) -> Line:
    """Returns the first line of a page (from 0), which no other page has."""
    return Line(f"{document}, page {page + 1}", LEFT, TOP - 12, SMALL)


def text_page(prose: Prose) -> Page:
    """Returns a title, a summary in small letters, and headings over paragraphs: about 500 words."""
    page = Page()
    page.write(prose.heading(), TITLE, bold=True)
    page.write(prose.paragraph(4), SMALL)
    while page.has_room:
        page.write(prose.heading(), HEADING, bold=True)
        page.write(prose.paragraph(5), BODY)
        page.write(prose.paragraph(4), BODY)
    return page


def table_page(prose: Prose) -> Page:
    """Returns a title over a table of ruled cells: names, then numbers."""
    page = Page()
    page.write(prose.heading(), TITLE, bold=True)
    page.write(prose.sentence(), BODY)
    top, width = page.y + 6, (RIGHT - LEFT) / COLUMNS
    for row in range(ROWS):
        for column in range(COLUMNS):
            text = prose.amount() if row and column else prose.words(1).title()
            place = (LEFT + column * width + 4, top + (row + 1) * ROW_HEIGHT - 5)
            page.lines.append(Line(text, x=place[0], y=place[1], size=BODY, bold=not row))
    bottom = top + ROWS * ROW_HEIGHT
    page.rules += [Rule(LEFT, top + row * ROW_HEIGHT, RIGHT, top + row * ROW_HEIGHT) for row in range(ROWS + 1)]
    page.rules += [Rule(LEFT + i * width, top, LEFT + i * width, bottom) for i in range(COLUMNS + 1)]
    return page
