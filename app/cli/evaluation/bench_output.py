"""What `vlm bench` prints."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any


def print_table(result: dict[str, Any]) -> None:
    if result["kind"] == "serve":
        return _print_served(result)
    from vlm_app.bench.table import HEADER, rows, workload

    _print(f"{result['kind']}: {workload(result)}", HEADER[1:], [row.cells for row in rows(result)])
    env = result["environment"]
    print(f"{env['device']}, {_bound(result)}; commit {env['commit'] or 'unknown'}")
    for line in _notes(result):
        print(line)
    _print_kernels(result)


def _print_kernels(result: dict[str, Any]) -> None:
    """Prints what the first token and the steps of each row consist of, where that was recorded."""
    from vlm_app.bench.table import by_backend

    for row in result.get("rows", [result]):
        for part in by_backend(result, row):
            for field, what in (("first_token_kernels", "the first token"), ("kernels", "a step")):
                if (kernels := part["vlm"].get(field)) is not None:
                    _print_longest(f"{part['backend']}, batch {part['vlm']['batch_size']}: {what}", kernels)


def _print_longest(title: str, kernels: dict[str, Any]) -> None:
    """Prints how many kernels there are, how long they take, and those that take longest."""
    from vlm_app.bench.figures import number

    columns = ("count", "microseconds", "busy_microseconds")
    count, *times = (number(kernels[each]) for each in columns)
    print(f"{title} is {count} kernels of {times[0]} µs, in {times[1]} µs")  # as a table's title it would be wrapped
    lines = [(k["name"], *(number(k[each]) for each in columns)) for k in kernels["longest"]]
    _print(None, ("kernel", "times", "µs", "of them, after those before"), lines)


def _print_served(result: dict[str, Any]) -> None:
    from vlm_app.bench.serving.table import measured_on, notes, tables, title

    print(f"serve: {title(result)}")
    for table in tables(result):
        _print(None, table.names, table.rows)
    for line in (*notes(result), measured_on(result)):
        print(line)


def _print(title: str | None, names: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table whose first column names the measures."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for number, name in enumerate(names):
        table.add_column(name, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 120).print(table)


def _bound(result: dict[str, Any]) -> str:
    """Says what the floor was taken from."""
    if result["kind"] == "ocr":
        return f"{result['environment']['cpus']} CPUs; the floor is the engine alone, pixel values ready"
    return f"memory {result['floor']['bandwidth'] / 1e9:,.0f} GB/s measured"


def _notes(result: dict[str, Any]) -> Iterator[str]:
    """Yields what a figure beside ours is worth."""
    if result["kind"] == "ocr":
        return
    rows = result.get("rows", ())
    token_counts = {row["hf"]["measured_tokens"] for row in rows if row["hf"] and row["hf"]["extrapolated"]}
    if token_counts:
        tokens = " or ".join(map(str, sorted(token_counts)))
        yield f"Hugging Face: extrapolated from {tokens} tokens a {result['kind']}"
    if rows and result["config"]["hf"] and not any(row["hf"] for row in rows):
        yield "Hugging Face: there is nothing that it could load"
    if check := result.get("check"):
        yield f"The same tokens as Hugging Face's: {check['agreement']:.1%} of {check['tokens']} of the first row"


def print_csv(result: dict[str, Any]) -> None:
    import csv

    from vlm_app.bench.csv_rows import csv_rows

    csv.writer(sys.stdout, lineterminator="\n").writerows(csv_rows(result))
