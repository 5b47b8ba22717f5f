"""Tables in OTSL (Lysak et al., arXiv:2305.03393) -> markdown, or HTML where cells span rows or columns."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass

from visual_engines.answers.doctags import CELLS, Element

Words = Callable[[list[Element | str]], str]
SPANNED = ("lcel", "ucel", "xcel")  # go on from the cell at the left, above, or both
MOST_CELLS = 50_000
HEADERS = ("ched", "rhed", "srow")


@dataclass
class Cell:
    kind: str
    parts: list[Element | str]


def table(element: Element, words: Words) -> str:
    """Returns the table of an element that holds cells, row by row; one without any as its words."""
    grid = _grid(element)
    if not any(grid):
        return words(element.parts)
    rows = _even(grid)
    spans = any(cell.kind in SPANNED for row in rows for cell in row)
    return _html(rows, words) if spans else _markdown(rows, words)


def _grid(element: Element) -> list[list[Cell]]:
    rows: list[list[Cell]] = [[]]
    for part in element.parts:
        if isinstance(part, Element) and part.name in CELLS:
            rows[-1].append(Cell(part.name, []))
        elif isinstance(part, Element) and part.name == "nl":
            rows.append([])
        elif rows[-1]:  # what stands before the first cell of a row is of none
            rows[-1][-1].parts.append(part)
    return [row for row in rows if row]


def _even(grid: list[list[Cell]]) -> list[list[Cell]]:
    """Fills rows up to the widest: the last may be cut off. Of a grid that no page has, the first alone, which
    markdown's tables are as wide as."""
    width = max(map(len, grid))
    few = len(grid) if len(grid) * width <= MOST_CELLS else 1
    return [[*row, *(Cell("ecel", []) for _ in range(width - len(row)))] for row in grid[:few]] + grid[few:]


def _markdown(rows: list[list[Cell]], words: Words) -> str:
    lines = [f"| {' | '.join(words(cell.parts).replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join((lines[0], f"|{' --- |' * len(rows[0])}", *lines[1:]))


def _html(rows: list[list[Cell]], words: Words) -> str:
    lines = []
    for y, row in enumerate(rows):
        cells = [_cell(rows, y, x, words) for x, cell in enumerate(row) if _begins(rows, y, x)]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join(("<table>", *lines, "</table>"))


def _begins(rows: list[list[Cell]], y: int, x: int) -> bool:
    """Says whether a cell begins here: one that goes on from none, at the edge of a table, is empty."""
    kind = rows[y][x].kind
    return kind not in SPANNED or (kind == "lcel" and not x) or (kind == "ucel" and not y)


def _cell(rows: list[list[Cell]], y: int, x: int, words: Words) -> str:
    across, down = x + 1, y + 1
    while across < len(rows[y]) and rows[y][across].kind == "lcel":
        across += 1
    while down < len(rows) and x < len(rows[down]) and rows[down][x].kind == "ucel":
        down += 1
    tag = "th" if rows[y][x].kind in HEADERS else "td"
    spans = {"colspan": across - x, "rowspan": down - y}
    given = "".join(f' {name}="{count}"' for name, count in spans.items() if count > 1)
    return f"<{tag}{given}>{html.escape(words(rows[y][x].parts), quote=False)}</{tag}>"
