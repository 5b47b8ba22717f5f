"""The example pages that the README shows: set like the training pages, in words of their own."""

from __future__ import annotations

import random
from pathlib import Path

from training.nougat.typesetting import blocks
from training.nougat.typesetting.fonts import Face
from training.nougat.typesetting.layout import Page, Run, Word
from training.nougat.typesetting.pages import HEIGHT, WIDTH, Renderer

SCALE = 3


def draw_examples(renderer: Renderer, folder: Path) -> None:
    """page.png, table.png and math.png with their texts beside them, and pages.pdf of all three."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {name: make(renderer) for name, make in {"page": _page, "table": _table, "math": _math}.items()}
    for name, page in drawn.items():
        page.image.save(folder / f"{name}.png", optimize=True)
        (folder / f"{name}.txt").write_text("".join(page.text) + "\n", encoding="utf-8")
    first, *rest = (page.image for page in drawn.values())
    first.save(folder / "pages.pdf", save_all=True, append_images=rest, resolution=72.0 * SCALE)


def _blank(renderer: Renderer, family: str, size: float, seed: int) -> Page:
    faces = {face: Face(path, SCALE) for face, path in renderer.faces[family].items()}
    page = Page(random.Random(seed), faces, size, WIDTH, HEIGHT)
    page.left, page.right, page.y, page.indent, page.justify, page.curly = 16, WIDTH - 14, 12, 0, False, False
    page.line_height, page.gap, page.ink, page.pen_width = size * 1.35, size * 0.75, 24, 1.0
    page.image.paste(252, (0, 0, *page.image.size))
    return page


def _heading(page: Page, text: str, level: int = 1) -> None:
    size = round(page.size * (1.7 if level == 1 else 1.3) * 2) / 2
    sign = "#" * level + " " if page.text else "# "
    words = [page.plain(t, "bold", size, before=sign if i == 0 else "") for i, t in enumerate(text.split())]
    assert page.block(words, size * 1.25, size=size)


def _paragraph(page: Page, text: str) -> None:
    """`*word` is bold; `^x2` a variable with an exponent, in a formula."""
    assert page.block([_word(page, part) for part in text.split()])


def _word(page: Page, part: str) -> Word:
    if part.startswith("*"):
        return page.plain(part[1:], "bold", before="**", after="**")
    if not part.startswith("^"):
        return page.plain(part)
    small = round(page.size * 0.74 * 2) / 2
    base = Run(part[1], page.faces["italic"], page.size, before="\\(")
    power = Run(part[2], page.faces["regular"], small, dy=-page.size * 0.36, before="^{", after="}\\)")
    rest = [Run(part[3:], page.faces["regular"], page.size)] if part[3:] else []
    return Word([base, power, *rest])


def _page(renderer: Renderer) -> Page:
    page = _blank(renderer, "LiberationSerif", 14, 4)
    _heading(page, "Harbour notes")
    _paragraph(page, "On 2026-11-20 the ferry *Aurora left at 07:45 with 312 guests, 18% more than in May.")
    _heading(page, "What changed", 2)
    assert blocks.bullets(page, ["new tide gauge at pier 4".split(), "diesel: $1,290 a week".split()])
    _paragraph(page, "The wave height grows with ^v2 at sea: slow down near the old lighthouse.")
    return page


def _table(renderer: Renderer) -> Page:
    page = _blank(renderer, "Carlito", 15, 7)
    _heading(page, "Prices")
    _paragraph(page, "Fish landed in the second week, in kilograms and euros:")
    rows = ["Fish Weight Price", "cod 1,204 3.10", "herring 958 1.45", "mackerel 77 2.80"]
    assert blocks.table(page, [[[cell] for cell in row.split()] for row in rows])
    _paragraph(page, "Weights are rounded; *prices are not.")
    return page


def _math(renderer: Renderer) -> Page:
    page = _blank(renderer, "DejaVuSerif", 12.5, 2)
    _heading(page, "Waves", 2)
    _paragraph(page, "A wave of height ^h2 carries an energy that is easy to write down:")
    assert blocks.display(page, greek=True)
    _paragraph(page, "Here the first term is measured at noon, the others by night.")
    return page
