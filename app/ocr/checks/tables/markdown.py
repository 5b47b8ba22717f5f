"""Tables of lines with `|`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from vlm_app.ocr.checks.tables.grid import Draft, Table


def markdown_tables(text: str) -> list[Table]:
    """Returns tables of two or more lines in a row that hold a `|`. The first row and the first column are headings."""
    blocks = (list(lines) for has_bar, lines in groupby(text.strip().split("\n"), lambda line: "|" in line) if has_bar)
    tables = (Table.from_rows(_drafts(block)) for block in blocks if len(block) >= 2)
    return [table for table in tables if table is not None]


def _drafts(lines: Iterable[str]) -> list[list[Draft]]:
    rows = [cells for line in _without_rules(lines) if (cells := _cells(line))]
    return [[Draft(cell, not r or not c) for c, cell in enumerate(cells)] for r, cells in enumerate(rows)]


def _without_rules(lines: Iterable[str]) -> list[str]:
    """Leaves out lines of `|---|:--:|`; tabs at the ends are allowed in the first alone, as olmOCR-bench has it."""
    kept, is_ruled = [], False
    for line in lines:
        bare = line.replace("|", "").strip()
        if not is_ruled and bare and _is_rule(bare):
            is_ruled = True
        elif not _is_rule(line):
            kept.append(line)
    return kept


def _is_rule(line: str) -> bool:
    return not line.strip("- :|")


def _cells(line: str) -> list[str]:
    cells = [cell.strip() for cell in line.split("|")]
    cells = cells[1:] if cells and not cells[0] else cells
    return cells[:-1] if cells and not cells[-1] else cells
