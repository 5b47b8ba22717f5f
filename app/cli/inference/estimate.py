"""`vlm estimate`: what `vlm ocr` would take for documents, told from a sample of their pages."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from vlm.backends.devices import chosen_devices
from vlm.errors import InputError
from vlm.requests.sampling_params import SamplingParams
from vlm_app.cli.display.progress import Progress
from vlm_app.cli.errors import command, print_error
from vlm_app.cli.inference.ocr import OCR_LOADING
from vlm_app.cli.options.common import DEFAULT_MODEL, Json, Model
from vlm_app.cli.options.groups import Group, takes
from vlm_app.core.load_options import LoadOptions
from vlm_app.ocr.config import EstimateConfig, JobConfig, PlaceConfig, check_gpu_price
from vlm_app.ocr.documents.naming import Document, name_all
from vlm_app.ocr.documents.pages import check_pages
from vlm_app.ocr.documents.sources import find_documents, other_files_notice
from vlm_app.ocr.estimates.sample_run import Sample, SampleRun
from vlm_app.ocr.estimates.sampling import Census, draw_pages, take_census
from vlm_app.ocr.readers.devices import load_reader
from vlm_app.ocr.readers.engines import EngineConfig

if TYPE_CHECKING:
    from vlm_app.ocr.estimates.estimate_report import EstimateReport


@command
@takes(
    sampling=Group.making(EstimateConfig),
    config=Group.making(JobConfig).only("pages", "prompt", "question", "max_new_tokens", "retries"),
    places=Group.making(PlaceConfig).only("workers", "devices"),
    options=OCR_LOADING,
)
def estimate(
    *,
    paths: Annotated[list[str], typer.Argument(help="Images, PDFs, and folders of them; also URLs (s3://…).")],
    model: Model = DEFAULT_MODEL,
    sampling: EstimateConfig,
    gpu_price: Annotated[float | None, typer.Option(help="Of a device, an hour: what the job costs is told.")] = None,
    config: JobConfig,
    places: PlaceConfig,
    as_json: Json = False,
    options: LoadOptions,
) -> None:
    """Tell how long `vlm ocr` takes for documents and what it costs, from a sample of their pages.

    Pages are drawn at random (--seed) and read as `vlm ocr` reads them; nothing is written. Each number has an interval
    of 90%, but for those of a sample of one page. Loading the model is not part of the time.

    \b
    Examples:
      vlm estimate scans/ --gpu-price 2.50
      vlm estimate s3://scans/2026 --model facebook/nougat-base --devices all --sample 2000 --json
    """
    check_gpu_price(gpu_price)
    SamplingParams(max_new_tokens=config.max_new_tokens)
    check_pages(config.pages)
    search = find_documents(paths)
    documents = name_all(search.sources)
    for path, reason in search.unreadable:
        print_error(f"not searched: {path}: {reason}.")
    if search.other_files:
        print_error(other_files_notice(search.other_files))
    with Progress() as progress:
        where = chosen_devices(places.devices, options.device)
        engine = EngineConfig.resolved(
            model, where, options, workers=places.workers, progress=progress, exact_pixels=config.exact_pixels,
            prompt=config.prompt, question=config.question,
        )  # fmt: skip
    census = _census(documents, engine, config.pages, sampling.seed)
    sample = _sample(documents, census, engine, config, sampling)
    _print(_report(sample, census, engine, gpu_price=gpu_price, seed=sampling.seed), as_json)


def _census(documents: list[Document], engine: EngineConfig, pages: str | None, seed: int) -> Census:
    """Raises InputError where there is nothing to read."""
    with contextlib.closing(engine.renderer()) as renderer:
        census = take_census(documents, renderer, pages, seed)
    if not census.pages:
        first = census.failures[0].reason
        count = len(census.counts)
        what = "the document cannot" if count == 1 else f"none of {count} documents can"
        raise InputError(f"{what} be opened: {first}")
    return census


def _sample(
    documents: list[Document], census: Census, engine: EngineConfig, config: JobConfig, sampling: EstimateConfig
) -> Sample:
    """Raises InputError where none of the pages could be read."""
    slots = engine.batch_size * len(engine.devices)
    drawn = draw_pages(census, sampling.sample or sampling.BATCHES * slots, sampling.seed)

    def show(done: int, total: int) -> None:
        progress("Reading a sample", done, total, f"{done} of {total} pages")

    with contextlib.closing(load_reader(engine)) as reader, Progress() as progress:
        run = SampleRun(reader, config, slots, show)
        sample = run.read(documents, drawn)
        known = sum(map(len, census.pages.values()))
        if sampling.sample is None and sample.pages and sample.is_brief and len(sample.pages) < known:
            sample = run.read(documents, draw_pages(census, sample.pages_for_long_enough, sampling.seed))
    if all(page.is_failed for page in sample.pages):
        raise InputError(f"no page of the sample could be read: {sample.summary.failures[0].reason}")
    return sample


def _report(sample: Sample, census: Census, engine: EngineConfig, gpu_price: float | None, seed: int) -> EstimateReport:
    from vlm_app.ocr.estimates.estimate import predict
    from vlm_app.ocr.estimates.estimate_report import EstimateReport

    numbers = predict(sample, census, engines=len(engine.devices), gpu_price=gpu_price, seed=seed)
    return EstimateReport(numbers, census, sample, seed, gpu_price)


def _print(report: EstimateReport, as_json: bool) -> None:
    if report.is_too_small:
        needed = 3 * report.sample.slots
        print_error(f"warning: {needed} pages or more show the engines full; give --sample {needed}, or leave it out.")
    if as_json:
        json.dump(report.as_json(), sys.stdout, indent=1, ensure_ascii=False)
        print()
    else:
        print(*report.lines(), sep="\n")
