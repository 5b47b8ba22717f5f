"""Tables of HTML, wherever they stand in a markdown text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vlm_app.ocr.checks.libraries import eval_library
from vlm_app.ocr.checks.tables.grid import Draft, Table


def html_tables(text: str) -> list[Table]:
    """Returns the tables, those within a cell too. Headings are `th`, and all cells of a `thead`."""
    if "<table" not in text.lower():
        return []
    soup = eval_library("bs4").BeautifulSoup(text, "html.parser")
    tables = (Table.from_rows(_rows(table)) for table in soup.find_all("table"))
    return [table for table in tables if table is not None]


def _rows(table: Any) -> Iterator[list[Draft]]:
    rows = table.find_all("tr")
    for number, row in enumerate(rows):
        in_head = row.find_parent("thead") is not None
        cells = row.find_all(["th", "td"], recursive=False)
        yield [_draft(cell, in_head=in_head, rows_left=len(rows) - number) for cell in cells]


def _draft(cell: Any, *, in_head: bool, rows_left: int) -> Draft:
    for line_break in cell.find_all("br"):
        line_break.replace_with("\n")
    rowspan = cell.get("rowspan")
    is_to_end = isinstance(rowspan, str) and rowspan.strip() == "0"  # HTML: to the end of the table
    return Draft(
        cell.get_text(separator="").strip(),
        is_heading=cell.name == "th" or in_head,
        rowspan=rows_left if is_to_end else _span(rowspan),
        colspan=_span(cell.get("colspan")),
    )


def _span(value: Any) -> int:
    try:
        return max(1, int(value))
    except (TypeError, ValueError):
        return 1
