"""`vlm ocr`: documents in, a text file each out."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.errors import INTERRUPTED, PARTLY_FAILED, complain, verb
from app.cli.options import DEFAULT_MODEL, Device, DType, MaxNewTokens, Model
from app.cli.progress import Progress
from app.ocr.job import Job, JobConfig, Summary
from app.ocr.sources import Target, check_pages, find_documents, open_pages, plan_outputs
from app.ocr.writers import FORMATS
from vlm.errors import InputError, listed
from vlm.runtime.request import SamplingParams

if TYPE_CHECKING:
    from vlm.pipeline import Pipeline

CUDA_BATCH_SIZE = 64  # pages at once: a decode step costs a GPU about the same for 1 and for 64


@verb
def ocr(
    paths: Annotated[list[Path], typer.Argument(help="Images, PDFs, and folders of them.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder that the text files go to.")],
    pages: Annotated[str | None, typer.Option(help="Of every document: 1-4,7. [default: all]")] = JobConfig.pages,
    format: Annotated[
        str, typer.Option(help="md: markdown; mmd: the model's own text; jsonl: an object a page.")
    ] = JobConfig.format,
    model: Model = DEFAULT_MODEL,
    batch_size: Annotated[
        int | None,
        typer.Option(help=f"Pages read at once. [default: as built, or {CUDA_BATCH_SIZE} on CUDA]"),
    ] = None,
    max_new_tokens: MaxNewTokens = JobConfig.max_new_tokens,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Read documents again whose output is there; else they are skipped.")
    ] = JobConfig.overwrite,
    device: Device = "auto",
    dtype: DType = None,
) -> None:
    """Read images and PDFs into one text file a document.

    A bad page costs that page: the text has a comment in its place, it is listed at the end, and the exit code is 1.
    Ctrl-C keeps the finished documents, and the finished pages of the others in NAME.partial.md; run it again to go on
    with the rest. Outputs are called after their documents (report.pdf: report.md) and lie as these do below the
    folders given; a.png and a.pdf become a.png.md and a.pdf.md.

    \b
    Examples:
      vlm ocr report.pdf -o text/
      vlm ocr scans/ letters/*.png -o text/ --format jsonl
      vlm ocr book.pdf -o text/ --pages 1-4,7 --model facebook/nougat-base
    """
    config = JobConfig(format, pages, max_new_tokens, overwrite)
    targets = _plan(paths, out, config)
    with Progress() as progress:
        pipeline = _load(model, device, dtype, batch_size, progress)
    started = time.perf_counter()
    with Progress() as progress:
        job = Job(pipeline, targets, config, lambda summary: _show(progress, summary, len(targets), started))
        summary = job.run()
    pipeline.close()
    _report(summary, time.perf_counter() - started)
    if summary.interrupted:
        raise typer.Exit(INTERRUPTED)
    if summary.failures:
        raise typer.Exit(PARTLY_FAILED)


def _plan(paths: list[Path], out: Path, config: JobConfig) -> list[Target]:
    """Finds what is wrong with the whole job before a model is loaded."""
    SamplingParams(max_new_tokens=config.max_new_tokens)
    if config.format not in FORMATS:
        raise InputError(f"--format is {config.format!r}; allowed are {listed(FORMATS)}.")
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file; give a folder.")
    check_pages(config.pages)
    targets = plan_outputs(find_documents(paths), out, f".{config.format}")
    if len(targets) == 1:
        open_pages(targets[0].source, config.pages)
    return targets


def _load(model: str, device: str, dtype: str | None, batch_size: int | None, progress: Progress) -> Pipeline:
    import vlm
    from vlm.resolve import locate
    from vlm.runtime.loader import resolve_device

    if batch_size is None and resolve_device(device).type == "cuda" and locate(model).kind != "engine":
        batch_size = CUDA_BATCH_SIZE
    return vlm.load(model, device=device, dtype=dtype, max_batch_size=batch_size, progress=progress)


def _show(progress: Progress, summary: Summary, documents: int, started: float) -> None:
    rate = summary.pages / (time.perf_counter() - started)
    failed = f", {len(summary.failures)} failed" if summary.failures else ""
    note = f"{summary.done} of {documents} documents, {summary.pages} pages, {rate:.1f} pages/s{failed}"
    progress("Reading", summary.done, documents, note)


def _report(summary: Summary, seconds: float) -> None:
    """What was done, on stderr, and what was not, page by page."""
    ended = ", ".join(f"{count} {reason}" for reason, count in sorted(summary.finish_reasons.items()))
    text = f"{summary.documents} documents, {summary.pages} pages, {summary.tokens} tokens in {seconds:.1f} s"
    print(text + (f" ({ended})" if ended else ""), file=sys.stderr)
    if summary.skipped:
        complain(f"{summary.skipped} documents skipped: their output is there (--overwrite reads them again).")
    for failure in summary.failures:
        where = f"{failure.document} page {failure.page}" if failure.page else str(failure.document)
        complain(f"not read: {where}: {failure.reason}")
    if summary.interrupted:
        kept = f"; finished pages of the others are in {listed(summary.partial)}" if summary.partial else ""
        complain(f"interrupted: {summary.documents} documents are finished{kept}.")
