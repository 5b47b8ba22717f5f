"""What `vlm eval pages` prints."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from vlm.errors import counted
from vlm_app.cli.errors import print_error
from vlm_app.ocr.checks.rates import Rate, interval, mean_percent
from vlm_app.ocr.checks.score import Score


def print_score(score: Score, most: int) -> None:
    """Prints a table of pass rates on stdout; on stderr what was not read or judged, and `most` of the failed checks at
    most."""
    _complain(score, most)
    print(f"{score.source}, {counted(len(score.readings), 'page')}, {counted(len(score.results), 'check')}")
    _print_table(score)
    if len(files := score.files) > 1:
        print(f"mean of the files: {mean_percent(files.values()):.1f}% {_span(files.values())}")


def _print_table(score: Score) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for name in ("", "passed", "of", "pass rate", "95% interval", "not judged"):
        table.add_column(name, justify="right" if name else "left")
    for title, rates in (("kind", score.kinds), ("file", score.files), ("folder", score.folders)):
        if title == "kind" or len(rates) > 1:
            for name, rate in rates.items():
                table.add_row(f"{title} {name}", *_cells(rate))
            table.add_section()
    table.add_row("all checks", *_cells(score.whole))
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 100).print(table)


def _cells(rate: Rate) -> tuple[str, ...]:
    shares = (f"{rate.percent:.1f}%", _span([rate])) if rate.judged else ("–", "–")
    return str(rate.passed), str(rate.judged), *shares, str(rate.not_judged or "")


def _span(rates: Iterable[Rate]) -> str:
    low, high = interval(rates)
    return f"{low:.1f}–{high:.1f}"


def _complain(score: Score, most: int) -> None:
    for (_, pdf, page), reading in score.readings.items():
        if not reading.texts:
            print_error(f"{pdf} page {page} was not read, its checks fail: {reading.error.rstrip('.')}.")
    for kind, reason in {result.check.type: result.check.unjudged for result in score.results}.items():
        if reason:
            print_error(f"checks of type {kind} are not judged: {reason}.")
    for result in score.failures[:most]:
        check = result.check
        print_error(f"failed: {check.id} ({check.type}, {check.pdf} page {check.page}): {result.verdict.reason}.")
    if 0 < most < len(score.failures):
        print_error(f"{len(score.failures) - most} more have failed; --show-failures or --json tells them.")
