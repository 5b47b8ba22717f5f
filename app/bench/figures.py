"""Figures as text, for all tables."""

from __future__ import annotations

from collections.abc import Iterable


def number(value: float) -> str:
    """Returns three digits of a small number, one behind the point of a large one, none of thousands."""
    if value >= 10:
        return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def percent(part: float) -> str:
    return f"{part:.0%}" if part >= 0.1 else f"{part:.1%}"


def markdown_line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
