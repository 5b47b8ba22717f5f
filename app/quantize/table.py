"""The report of `vlm quantize` for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vlm.convert.quantized.in_transformers import LOADED
from vlm.errors import counted

if TYPE_CHECKING:
    from rich.table import Table

SYSTEMS = ("dense", "quantized")
ROWS = (  # key, words, format
    ("perplexity", "perplexity of the dense outputs", ".4f"),
    ("character_errors", "character errors, %", ".2f"),
    ("exact", "outputs that are the reference, %", ".2f"),
    ("tokens_per_s", "tokens/s, one measurement", ",.0f"),
)


def table(result: dict[str, Any]) -> Table:
    """Returns both systems side by side."""
    from rich.table import Table

    grid = Table()
    grid.add_column(f"{result['model']}, {result['format']}")
    for name in SYSTEMS:
        grid.add_column(name, justify="right")
    grid.add_row("weights, MB", *(f"{result['bytes'][name] / 1e6:,.2f}" for name in SYSTEMS))
    for key, words, form in ROWS:
        if key in result.get("quantized", {}):
            grid.add_row(words, *(format(result[name][key], form) for name in SYSTEMS))
    return grid


def summary(result: dict[str, Any]) -> Iterator[str]:
    """Yields what is said beneath the table."""
    yield _compared(result)
    if result.get("export", {}).get("must_dequantize"):
        yield f"transformers runs {result['export']['folder']} only where it is loaded with {LOADED}."


def _compared(result: dict[str, Any]) -> str:
    """Returns how much the quantized model differs."""
    if "tokens" not in result:
        return "No inputs were given to compare on: add --calibrate pages/ or texts.jsonl for a report."
    noun, note = ("held-out input", "") if result["held_out"] else ("input", ", which it was calibrated on")
    difference = result["logprob_difference"]
    return (
        f"On {counted(result['compared_on'], noun)}{note}"
        f" ({counted(result['tokens'], 'token')}, {result['dtype']} on {result['device']}):"
        f" {result['token_agreement']:.2f}% of the tokens and {result['equal_outputs']:.1f}% of the outputs are the"
        f" dense model's, log-probabilities differ by {difference['mean']:.4f} on average, {difference['largest']:.3f}"
        " at most."
    )
