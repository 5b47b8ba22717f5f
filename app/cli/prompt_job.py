"""Prompts through a model, in their order, each with the rows of its task before it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from app.cli.errors import PARTLY_FAILED, complain
from app.cli.profiling import tokens_of
from app.cli.progress import Progress
from app.text.job import TextJob
from vlm.errors import InputError

if TYPE_CHECKING:
    from app.cli.tuned import TunedPrompts
    from app.text.job import Report
    from app.text.sources import Item
    from app.text.tasks import ToInput
    from vlm.pipeline import Output


class PromptJob(TextJob):
    """Writes each output on a line; that of a lone prompt as it is."""

    def __init__(self, *arguments: Any, alone: bool, **options: Any):
        super().__init__(*arguments, **options)
        self.alone = alone

    def _write(self, item: Item, result: Output | str | None) -> None:
        if result is None or isinstance(result, str):
            super()._write(item, result)
            return
        if self.as_json:
            super()._write(item, result)
            self.report.tokens += tokens_of([result]) - len(result.token_ids)
            return
        self.report.tokens += tokens_of([result])
        outputs = [result.text, *(other.text for other in result.alternatives)]
        whole = self.alone and len(outputs) == 1
        for text in outputs:
            print(text if whole else " ".join(text.splitlines()), file=self.out, flush=True)


def with_tasks(
    items: Iterator[Item], key: str, tuned: TunedPrompts | None
) -> tuple[Iterator[Item] | list[Item], ToInput]:
    """The items, and what makes inputs of their texts in order; `key` is what a prompt is called there."""
    if tuned is None:
        return items, lambda text: {key: text}
    if len(tuned.tasks) == 1:
        [table] = tuned.per_request(1)
        return items, lambda text: {key: text, "prompt_table": table}
    items = list(items)
    # an item without a text becomes no input
    asked = (x for item, x in zip(items, tuned.per_request(len(items)), strict=True)
             if item.error is None and item.text.strip())  # fmt: skip
    return items, lambda text: {key: text, "prompt_table": next(asked)}


def run_prompts(job: PromptJob, items: Iterator[Item] | list[Item], stream: bool) -> None:
    """Runs them and reports on stderr; exits with 1 if some failed."""
    with Progress() as progress:
        if job.out is not sys.stdout or not sys.stdout.isatty():  # where lines would run through the bar
            job.show = lambda report: progress("Prompts", report.texts, 0, _rate(report))
        report = job.stream(next(iter(items))) if stream else job.run(items)
    rate = f", {_rate(report)}" if _rate(report) else ""
    print(f"{report.texts} prompts, {report.tokens} tokens in {report.seconds:.2f} s{rate}", file=sys.stderr)
    for failure in report.failures:
        complain(failure)
    if report.failures:
        raise typer.Exit(PARTLY_FAILED)


def _rate(report: Report) -> str:
    return f"{report.tokens / report.seconds:,.0f} tokens/s" if report.tokens and report.seconds else ""


@contextlib.contextmanager
def opened(out: Path | None) -> Iterator[TextIO]:
    """Stdout, or a file. InputError when it cannot be written."""
    if out is None:
        yield sys.stdout
        return
    try:
        file = out.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise InputError(f"--out {out} cannot be written: {error.strerror}.") from None
    with file:
        yield file
