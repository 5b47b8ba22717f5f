"""Checks of tables: a cell, and what its neighbours and headings say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from vlm_app.ocr.checks.check import Check, shown
from vlm_app.ocr.checks.libraries import similarity
from vlm_app.ocr.checks.normalizing import normalized
from vlm_app.ocr.checks.page_text import PageText
from vlm_app.ocr.checks.tables.grid import Cell, Table

LEAST = 0.5  # similarity, whatever max_diffs allows
RELATIONS = {
    "up": Table.above, "down": Table.below, "left": Table.left_of, "right": Table.right_of,
    "left_heading": Table.left_headings, "top_heading": Table.top_headings,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TableCheck(Check):
    """`table`: a cell of a markdown or HTML table stands in these relations to others; "" is not looked at."""

    cell: str
    up: str = ""
    down: str = ""
    left: str = ""
    right: str = ""
    top_heading: str = ""
    left_heading: str = ""
    ignore_markdown_tables: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("cell", *RELATIONS):
            object.__setattr__(self, name, normalized(getattr(self, name)))

    def failure(self, page: PageText) -> str | None:
        tables = page.html_tables if self.ignore_markdown_tables else page.markdown_tables + page.html_tables
        if not tables:
            return "there is no table"
        first = None
        for table in tables:
            for cell in self._alike(self.cell, table.cells):
                unmet = next(self._unmet(table, cell), None)
                if unmet is None:
                    return None
                first = first or unmet
        return first or f"no cell is {shown(self.cell)}"

    def _unmet(self, table: Table, cell: Cell) -> Iterator[str]:
        """Yields the relations in which a cell does not stand."""
        for name, neighbours in RELATIONS.items():
            text, cells = getattr(self, name), neighbours(table, cell) if getattr(self, name) else ()
            if text and not any(self._alike(text, cells)):
                others = ", ".join(sorted(shown(other.text) for other in cells)) or "no cell"
                yield f"{name} of {shown(cell.text)} is {others}, not {shown(text)}"

    def _alike(self, text: str, cells: Iterable[Cell]) -> Iterator[Cell]:
        least = max(LEAST, self._threshold(text))
        return (cell for cell in cells if similarity(text, cell.text) >= least)
