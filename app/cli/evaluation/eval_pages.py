"""`vlm eval pages`: what a model reads of pages, held against checks in the form of olmOCR-bench."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from vlm.backends.devices import devices_of
from vlm.errors import InputError
from vlm.options import check_limits, option, same_option
from vlm.ranges import Range, at_least
from vlm_app.cli.display.progress import Progress
from vlm_app.cli.display.result_file import check_writable, write_result
from vlm_app.cli.errors import PARTLY_FAILED, command, print_error
from vlm_app.cli.evaluation.eval_pages_output import print_score
from vlm_app.cli.inference.ocr import OCR_LOADING
from vlm_app.cli.options.common import DEFAULT_MODEL, MODEL_HELP
from vlm_app.cli.options.groups import Group, takes
from vlm_app.core.load_options import LoadOptions
from vlm_app.ocr.checks.check_file import Entry, read_checks, with_baselines
from vlm_app.ocr.checks.libraries import check_installed
from vlm_app.ocr.checks.readings import Documents, Page, Reading
from vlm_app.ocr.checks.score import Score, judged
from vlm_app.ocr.checks.text_folder import read_texts
from vlm_app.ocr.config import JobConfig
from vlm_app.ocr.readers.devices import load_reader
from vlm_app.ocr.readers.engines import EngineConfig


@dataclass(frozen=True)
class PageScoring:
    """Where the pages or their texts are, and what is demanded. Raises InputError for a value that is not allowed."""

    documents: Path | None = option(None, "The folder of the documents.", default="that of the checks, or pdfs/ in it")
    texts: Path | None = option(None, "Judge the texts in this folder, which vlm ocr wrote, without a model.")
    max_new_tokens: int | None = same_option(JobConfig, "max_new_tokens")
    workers: int | None = option(None, "Processes that render pages.", default="half of the cores")
    skip_baseline: bool = option(False, "Only the checks that are written: no baseline for pages that have none.")
    show_failures: int = option(10, "Failed checks that are told on stderr, at most.", allowed=at_least(0))
    min_pass_rate: float | None = option(
        None, "Exit with 1 below this pass rate (0 to 100) of all checks.",
        allowed=Range(0, 100, words="it must lie between 0 and 100"),
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_limits(self, flags=True)
        if self.texts and self.documents:
            raise InputError("--documents is for a model that reads; with --texts, no document is opened.")


@command
@takes(scoring=Group.making(PageScoring), options=OCR_LOADING)
def pages(
    *,
    checks: Annotated[list[Path], typer.Option("--checks", help="A JSONL file of checks. Repeat it for more.")],
    model: Annotated[str | None, typer.Option("--model", "-m", help=f"{MODEL_HELP} [default: {DEFAULT_MODEL}]")] = None,
    scoring: PageScoring,
    out: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
    options: LoadOptions,
) -> None:
    """Check what is read of pages: this text is there, that one is not, one comes before another, cells of tables.

    Checks are lines of JSON in the form of olmOCR-bench, whose files are read as they are published; docs/ocr.md has
    the fields. The model reads each page once, as vlm ocr does; with --texts they have been read. Pass rates are
    printed by kind, file and folder, with the 95% interval that a bootstrap of the checks gives.

    \b
    Examples:
      vlm eval pages --checks checks.jsonl
      vlm eval pages --checks bench/tables.jsonl --checks bench/multi_column.jsonl --model facebook/nougat-base
      vlm eval pages --checks checks.jsonl --texts text/ --min-pass-rate 90 --json scores.json
    """
    if scoring.texts and model:
        raise InputError("--model reads pages; with --texts they have been read.")
    check_installed()
    check_writable(out)
    entries = [entry for file in dict.fromkeys(checks) for entry in read_checks(file)]
    entries = entries if scoring.skip_baseline else with_baselines(entries)
    model = model or DEFAULT_MODEL
    readings = read_texts(entries, scoring.texts) if scoring.texts else _read(entries, model, scoring, options)
    score = Score(str(scoring.texts or model), judged(entries, readings), readings)
    print_score(score, most=scoring.show_failures)
    if out is not None:  # its intervals are drawn a second time
        write_result(score.record(), out)
    if scoring.min_pass_rate is not None and score.whole.percent < scoring.min_pass_rate:
        print_error(f"the pass rate {score.whole.percent:.2f} is below {scoring.min_pass_rate:g}.")
        raise typer.Exit(PARTLY_FAILED)


def _read(entries: list[Entry], model: str, scoring: PageScoring, options: LoadOptions) -> dict[Page, Reading]:
    documents = Documents.found(entries, scoring.documents)
    with Progress() as progress:
        devices = devices_of(options.device, "device")
        engine = EngineConfig.resolved(model, devices, options, workers=scoring.workers, progress=progress)
        with contextlib.closing(load_reader(engine)) as reader:
            sampling = {"max_new_tokens": scoring.max_new_tokens}
            return documents.read(reader, sampling, lambda count, total: progress("Reading", count, total))
