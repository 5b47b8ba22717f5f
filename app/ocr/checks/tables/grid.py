"""A table as a grid of cells that may span rows and columns: which cells lie beside, above and below one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from vlm_app.ocr.checks.normalizing import normalized

MAX_COLUMNS, MAX_ROWS = 1000, 65534  # that a cell may span: as HTML has it


@dataclass(frozen=True)
class Draft:
    """A cell of a row, before it has its place."""

    text: str
    is_heading: bool = False
    rowspan: int = 1
    colspan: int = 1


@dataclass(frozen=True, eq=False)  # a cell is itself: two of one text differ
class Cell:
    """A cell in its place; `rows` and `columns` are the ones that it spans."""

    text: str  # normalized
    is_heading: bool
    rows: range
    columns: range


Row = list[Cell | None]  # a cell stands in each column that it spans
Neighbours = Callable[[Cell], set[Cell]]


class Table:
    """A grid of rows, which may differ in length."""

    def __init__(self, cells: list[Cell], grid: list[Row]):
        self.cells, self._grid = cells, grid

    @classmethod
    def from_rows(cls, rows: Iterable[list[Draft]]) -> Table | None:
        """Places the cells as a browser does, row by row in the columns that are free; a cell that spans more rows
        than there are makes rows of its own. None for a table without cells."""
        layout = _Layout()
        for row in rows:
            layout.add(row)
        while layout.is_open:
            layout.add([])
        return cls(layout.cells, layout.grid) if layout.cells else None

    def above(self, cell: Cell) -> set[Cell]:
        rows = range(cell.rows.start - 1, -1, -1)
        return _first_others(cell, ((self._at(row, column) for row in rows) for column in cell.columns))

    def below(self, cell: Cell) -> set[Cell]:
        rows = range(cell.rows.stop, len(self._grid))
        return _first_others(cell, ((self._at(row, column) for row in rows) for column in cell.columns))

    def left_of(self, cell: Cell) -> set[Cell]:
        columns = range(cell.columns.start - 1, -1, -1)
        return _first_others(cell, ((self._at(row, column) for column in columns) for row in cell.rows))

    def right_of(self, cell: Cell) -> set[Cell]:
        columns = range(cell.columns.stop, self._width)
        return _first_others(cell, ((self._at(row, column) for column in columns) for row in cell.rows))

    def top_headings(self, cell: Cell) -> set[Cell]:
        return _headings(cell, self.above)

    def left_headings(self, cell: Cell) -> set[Cell]:
        return _headings(cell, self.left_of)

    @cached_property
    def _width(self) -> int:
        return max(map(len, self._grid))

    def _at(self, row: int, column: int) -> Cell | None:
        inside = row < len(self._grid) and column < len(self._grid[row])
        return self._grid[row][column] if inside else None


class _Layout:
    """A grid that grows by rows."""

    def __init__(self) -> None:
        self.cells: list[Cell] = []
        self.grid: list[Row] = []
        self._open: list[tuple[Cell, int] | None] = []  # by column: a cell that goes on below, for so many rows

    @property
    def is_open(self) -> bool:
        return any(self._open)

    def add(self, drafts: list[Draft]) -> None:
        row: Row = []
        waiting = iter(drafts)
        while True:
            self._go_on(row)
            draft = next(waiting, None)
            if draft is not None:
                self._place(draft, row)
            elif len(row) < len(self._open):
                row.append(None)
            else:
                break
        self.grid.append(row)

    def _go_on(self, row: Row) -> None:
        """Appends the cells of rows above that span the next columns of this one."""
        while len(row) < len(self._open) and (entry := self._open[len(row)]):
            cell, more = entry
            self._open[len(row)] = (cell, more - 1) if more > 1 else None
            row.append(cell)

    def _place(self, draft: Draft, row: Row) -> None:
        rowspan, colspan = min(draft.rowspan, MAX_ROWS), min(draft.colspan, MAX_COLUMNS)
        columns = range(len(row), len(row) + colspan)
        cell = Cell(normalized(draft.text), draft.is_heading, range(len(self.grid), len(self.grid) + rowspan), columns)
        self._open += [None] * (columns.stop - len(self._open))
        self._open[columns.start : columns.stop] = [(cell, rowspan - 1) if rowspan > 1 else None] * colspan
        self.cells.append(cell)
        row += [cell] * colspan


def _first_others(cell: Cell, lines: Iterable[Iterator[Cell | None]]) -> set[Cell]:
    """Returns the first cell of each line that is not this one; empty places are passed over."""
    firsts = (next((other for other in line if other is not None and other is not cell), None) for line in lines)
    return {other for other in firsts if other is not None}


def _headings(cell: Cell, step: Neighbours) -> set[Cell]:
    """Returns the headings that steps lead to, or, where none does, the cells at which they end."""
    reached, pending = {cell}, [cell]
    while pending:
        new = step(pending.pop()) - reached
        reached |= new
        pending += new
    reached.discard(cell)
    return {other for other in reached if other.is_heading} or {other for other in reached if not step(other)}
