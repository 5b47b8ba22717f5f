"""`vlm ocr`: documents in, a text file each out."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from vlm.backends.devices import chosen_devices
from vlm.errors import InputError, listed
from vlm.interrupts import sigterm_interrupts
from vlm.parallel.environment import be_no_rank
from vlm.requests.sampling_params import SamplingParams
from vlm_app.cli.display.progress import Progress
from vlm_app.cli.errors import INTERRUPTED, PARTLY_FAILED, TERMINATED, command, print_error
from vlm_app.cli.options.common import DEFAULT_MODEL, Model
from vlm_app.cli.options.groups import LOADING_ADAPTER, Group, takes
from vlm_app.core.load_options import LoadOptions
from vlm_app.core.processes.early_start import start_early
from vlm_app.core.storage import is_remote, location, regular_file_state
from vlm_app.ocr.config import JobConfig, PlaceConfig, check_gpu_price
from vlm_app.ocr.documents.naming import FORMATS, Document, name_all
from vlm_app.ocr.documents.open_document import OpenDocument
from vlm_app.ocr.documents.pages import check_pages, selected
from vlm_app.ocr.documents.render_pool import PRELOAD
from vlm_app.ocr.documents.sources import SearchResult, Shard, find_documents
from vlm_app.ocr.events import Reader
from vlm_app.ocr.job import Job
from vlm_app.ocr.ledger.ledger import Ledger
from vlm_app.ocr.ledger.state import ledger_of
from vlm_app.ocr.outputs import Outputs
from vlm_app.ocr.readers.devices import load_reader
from vlm_app.ocr.readers.engines import EngineConfig
from vlm_app.ocr.report import Failure, Summary, complaints, live, totals
from vlm_app.ocr.reports.job_report import configuration_of, job_report, report_path, write_report

OCR_LOADING = LOADING_ADAPTER.changed(
    max_batch_size={
        "flags": ("--batch-size", "--max-batch-size"),
        "help": "Pages read at once.",
        "default": f"as built, or {EngineConfig.CUDA_BATCH_SIZE} on CUDA",
    },
    batch_invariant={"default": "on"},
)


@command
@sigterm_interrupts()
@takes(config=Group.making(JobConfig), places=Group.making(PlaceConfig), options=OCR_LOADING)
def ocr(
    *,
    paths: Annotated[list[str], typer.Argument(help="Images, PDFs, and folders of them; also URLs (s3://…).")],
    out: Annotated[str, typer.Option("--out", "-o", help="The folder or URL that the text files go to.")],
    model: Model = DEFAULT_MODEL,
    config: JobConfig,
    gpu_price: Annotated[
        float | None, typer.Option(help="Of a device, an hour: the report tells the cost of a million pages.")
    ] = None,
    report: Annotated[
        str | None, typer.Option(help="A JSON file to tell of the job at its end; a page in HTML goes beside it.")
    ] = None,
    places: PlaceConfig,
    options: LoadOptions,
) -> None:
    """Read images and PDFs into one text file a document.

    A bad page costs that page: the text has a comment in its place, it is listed at the end, and the exit code is 1.
    Every page that was read is kept in a ledger (OUT/.vlm-ocr): whatever ends the job, the same command goes on after
    the last page. Ctrl-C and SIGTERM also leave the finished pages of unfinished documents in NAME.partial.md. Outputs
    are called after their documents (report.pdf: report.md) and lie as these do below the folders given; a.png and
    a.pdf become a.png.md and a.pdf.md. A file that the job did not write is never written over: its document is refused
    by name.

    \b
    Examples:
      vlm ocr report.pdf -o text/
      vlm ocr scans/ letters/*.png -o text/ --format jsonl
      vlm ocr book.pdf -o text/ --pages 1-4,7 --model facebook/nougat-base --lora books=./books-lora
      vlm ocr s3://scans/2026 -o s3://texts/2026 --devices all --gpu-price 2.50 --report job.json
    """
    check_gpu_price(gpu_price)
    folder = _folder(out)
    part = Shard.parse(places.shard) if places.shard else None
    if places.ray and config.limit:
        raise InputError("--limit is for one machine; with --ray, --shard and --pages make a job smaller.")
    report_file = report_path(report) if report else None
    search = _find(paths, folder, config)
    documents = name_all(search.sources)
    if part or places.ray:
        be_no_rank()  # a part is this process's own, and Ray's engines are in others
    if part:
        documents = part.select(documents)
    if not places.ray and places.workers != 0:
        start_early([model], PRELOAD)
    with Progress() as progress:
        where = _cluster_device(options.device) if places.ray else chosen_devices(places.devices, options.device)
        engine = EngineConfig.resolved(
            model, where, options, workers=places.workers, progress=progress, elsewhere=places.ray,
            exact_pixels=config.exact_pixels, prompt=config.prompt, question=config.question,
        )  # fmt: skip
    name = part.name if part else ""
    with ledger_of(folder, engine.settings(config.max_new_tokens), config.recompute, name) as ledger:
        reader = _cluster_reader(engine, places.engines) if places.ray else load_reader(engine)
        summary = _run(reader, documents, config, ledger=ledger, outputs=Outputs(folder, config.format, ledger, name))
    summary.failures += [Failure(path, None, f"{reason}.", "not searched") for path, reason in search.unreadable]
    summary.other_files = search.other_files
    _tell(summary, gpu_price)
    if report_file:
        _report(report_file, job_report(summary, configuration_of(engine, config), gpu_price), summary)
    _end(summary)


def _folder(out: str) -> Path:
    """Returns where outputs go. Raises InputError for stdout."""
    if out == "-":
        said = "but a job writes a file a document; give a folder, or use vlm run --image, which writes to stdout"
        raise InputError(f"--out is -, {said}.")
    return location(out)


def _find(paths: list[str], out: Path, config: JobConfig) -> SearchResult:
    """Finds documents, and what is wrong with the whole job before a model is loaded."""
    SamplingParams(max_new_tokens=config.max_new_tokens)
    if config.format not in FORMATS:
        raise InputError(f"--format is {config.format!r}; allowed are {listed(FORMATS)}.")
    if not is_remote(out) and out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file; give a folder.")
    check_pages(config.pages)
    search = find_documents(paths)
    if len(search.sources) == 1:
        regular_file_state(search.sources[0].path)
        selected(config.pages, OpenDocument(search.sources[0].path).num_pages)
    return search


def _cluster_device(device: str) -> tuple[str]:
    from vlm_app.ocr.readers.cluster import connect

    gpus = connect()
    return (("cuda" if gpus else "cpu") if device == "auto" else device,)


def _cluster_reader(engine: EngineConfig, engines: int | None) -> Reader:
    from vlm_app.ocr.readers.cluster import RayReader

    return RayReader(engine, engines)


def _run(reader: Reader, documents: list[Document], config: JobConfig, ledger: Ledger, outputs: Outputs) -> Summary:
    def show(summary: Summary) -> None:
        progress("Reading", summary.done, summary.total, live(summary, summary.total))

    with contextlib.closing(reader), Progress() as progress:
        return Job(reader, documents, config, ledger=ledger, outputs=outputs, on_progress=show).run()


def _tell(summary: Summary, gpu_price: float | None) -> None:
    for line in totals(summary, gpu_price):
        print(line, file=sys.stderr)
    for line in complaints(summary):
        print_error(line)


def _report(path: Path, report: dict[str, Any], summary: Summary) -> None:
    """Writes the report. Where it cannot be written, what ended the job is still told, and the job's exit code."""
    try:
        write_report(path, report)
    except InputError as error:
        if not (summary.stopped or summary.interrupted):
            raise
        print_error(error)


def _end(summary: Summary) -> None:
    """Raises what ended the job, or its exit code."""
    if summary.stopped:
        raise summary.stopped
    if summary.interrupted:
        raise typer.Exit(TERMINATED if summary.terminated else INTERRUPTED)
    if not summary.is_complete:
        raise typer.Exit(PARTLY_FAILED)
