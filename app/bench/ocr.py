"""`vlm bench ocr`: the job of `vlm ocr` over generated documents, from files to written markdown.

What the job could reach at most is measured in the same run: its engine alone, whose pixel values are ready.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from vlm.artifacts.native.engine_dir import EngineDir
from vlm.artifacts.progress import Progress
from vlm.backends.devices import resolve_device
from vlm_app.bench.ocr_config import OcrBenchConfig
from vlm_app.bench.pages.documents import Corpus, write_documents
from vlm_app.bench.pages.kinds import PDF_KINDS
from vlm_app.bench.pages.pdf import check_pypdfium2
from vlm_app.bench.systems.engine_alone import engine_alone
from vlm_app.bench.systems.environment import environment
from vlm_app.bench.systems.page_engine import page_engine
from vlm_app.bench.systems.page_job import PageJob
from vlm_app.bench.systems.processes import ProcessMeter
from vlm_app.bench.systems.session import Results
from vlm_app.bench.systems.subject import backend_name
from vlm_app.bench.timing.gpu_meter import GpuMeter
from vlm_app.core.processes.running import release
from vlm_app.ocr.readers.devices import load_reader
from vlm_app.ocr.readers.engines import EngineConfig

if TYPE_CHECKING:
    from vlm_app.ocr.events import Reader

# of a row's runs; None where this machine does not tell
MEDIANS = ("pages_per_s", "tokens_per_s", "cpu_ms_per_page", "gpu_busy", "peak_rss_bytes", "processes")


@dataclass(frozen=True)
class Bench:
    """What the rows of one result share."""

    config: OcrBenchConfig
    engine: EngineConfig
    job: PageJob
    warm_up: Corpus
    runs: Sequence[Corpus]  # each has documents of its own: no cache has seen them
    say: Progress


def ocr(config: OcrBenchConfig, progress: Progress | None = None) -> Results:
    """Measures the engine alone, then the job with each number of workers."""
    if pdfs := [kind for kind in config.kinds if kind in PDF_KINDS]:
        check_pypdfium2(pdfs)
    with tempfile.TemporaryDirectory(prefix="vlm-bench-") as scratch:
        bench = _prepared(config, Path(scratch), progress or (lambda *_: None))
        bench.say("Measuring the engine alone", 0, 0)
        alone = engine_alone(bench.engine, bench.runs[0], bench.job, repeats=config.repeats)
        rows = [_row(bench, workers, alone) for workers in config.workers or (None,)]
        return _head(bench) | {"engine_alone": alone, "rows": rows}


def _prepared(config: OcrBenchConfig, scratch: Path, say: Progress) -> Bench:
    """Resolves the engine and makes the documents."""
    engine = page_engine(config, scratch / "model", say)

    def write(name: str, documents: int) -> Corpus:
        return write_documents(
            scratch / "documents" / name,
            kinds=config.kinds,
            documents=documents,
            pages=config.pages_per_document,
            seed=f"{config.seed}/{name}",
            progress=say,
        )

    full_batches = -(-engine.batch_size * len(engine.devices) // config.pages_per_document)
    warm_up = write("warm-up", min(full_batches, config.documents))
    runs = [write(f"run{number}", config.documents) for number in range(config.repeats)]
    job = PageJob(engine, config.max_new_tokens, scratch, fixed_length=config.is_random)
    return Bench(config, engine, job, warm_up, runs, say)


def _head(bench: Bench) -> Results:
    """Returns what a result says of itself."""
    config, engine = bench.config, bench.engine
    build = EngineDir.open(engine.path, verify=False).build
    used = dataclasses.replace(
        config,
        device=engine.devices[0],
        devices=",".join(engine.devices),
        dtype=build.dtype,
        backends=(backend_name(build),),
        batch_size=engine.batch_size,
        tokens=config.max_new_tokens,
    )
    corpus = bench.runs[0]
    about = {"pages": corpus.pages, "bytes_per_page": corpus.bytes_per_page}
    settings = {"config": used.to_dict(), "environment": environment(resolve_device(engine.devices[0]))}
    return {"kind": "ocr", "subject": config.subject, **settings, "documents": about}


def _row(bench: Bench, workers: int | None, alone: Results) -> Results:
    """Loads a reader with so many workers and measures every run."""
    title = "Reading" if workers is None else f"Reading, {workers} worker{'s' * (workers != 1)}"
    engine = dataclasses.replace(bench.engine, workers=workers)
    devices = [resolve_device(name) for name in engine.devices]
    release()  # the engine sizes its cache by what is free
    with closing(GpuMeter(devices)) as gpu:
        began = time.perf_counter()
        with closing(load_reader(engine)) as reader:
            times = {"load_seconds": time.perf_counter() - began}
            times["startup_seconds"] = bench.job.warm_up(reader, bench.warm_up) - began
            runs = []
            for number, corpus in enumerate(bench.runs):
                bench.say(title, number, len(bench.runs))
                runs.append(_run(bench.job, reader, corpus, gpu))
    return {"workers": workers, "vlm": _medians(runs) | times | {"runs": runs}, "hf": None} | _floor(runs, alone)


def _run(job: PageJob, reader: Reader, corpus: Corpus, gpu: GpuMeter) -> Results:
    """Measures one job, from files to written text."""
    began = time.perf_counter()
    with ProcessMeter(without=gpu.pids) as meter:
        summary = job.read(reader, corpus)
    ended = time.perf_counter()
    seconds = ended - began
    return {
        "seconds": seconds,
        "pages": summary.pages,
        "bad_pages": summary.bad_pages,
        "tokens": summary.tokens,
        "pages_per_s": summary.pages / seconds,
        "tokens_per_s": summary.tokens / seconds,
        "cpu_ms_per_page": meter.cpu_seconds / summary.pages * 1e3,
        "gpu_busy": gpu.busy(began, ended),
        "peak_rss_bytes": meter.peak_rss_bytes,
        "processes": meter.processes,
    }


def _medians(runs: Sequence[Results]) -> Results:
    values = {name: [run[name] for run in runs if run[name] is not None] for name in MEDIANS}
    return {name: median(each) if each else None for name, each in values.items()}


def _floor(runs: Sequence[Results], alone: Results) -> Results:
    """Returns what the engine alone does, and the part of it that was reached."""
    rates = {name: alone[name] for name in ("pages_per_s", "tokens_per_s")}
    return {"floor": rates | {"reached": _medians(runs)["pages_per_s"] / alone["pages_per_s"]}}
