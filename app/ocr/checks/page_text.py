"""The text of one page, and what checks look at in it, each made once."""

from __future__ import annotations

from functools import cached_property

from vlm_app.ocr.checks.normalizing import normalized
from vlm_app.ocr.checks.tables.grid import Table
from vlm_app.ocr.checks.tables.html import html_tables
from vlm_app.ocr.checks.tables.markdown import markdown_tables


class PageText:
    """A page's markdown, as it was written."""

    def __init__(self, text: str):
        self.text = text

    @cached_property
    def normalized(self) -> str:
        return normalized(self.text)

    @cached_property
    def markdown_tables(self) -> list[Table]:
        return markdown_tables(self.text)

    @cached_property
    def html_tables(self) -> list[Table]:
        return html_tables(self.text)
