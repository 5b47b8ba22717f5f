"""The report of a job as one JSON object, and as a page beside it."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlm.errors import InputError
from vlm_app.core.names import as_text
from vlm_app.core.storage import is_remote, location, reaching
from vlm_app.ocr.bottleneck import bottleneck
from vlm_app.ocr.measures import Interval
from vlm_app.ocr.placing import write_whole
from vlm_app.ocr.reports.html_report import html_report

if TYPE_CHECKING:
    from vlm_app.ocr.config import JobConfig
    from vlm_app.ocr.readers.engines import EngineConfig
    from vlm_app.ocr.report import Failure, Summary

LISTED = 1000  # failures; the others are counted; and documents with attachments
SUFFIX, PAGE_SUFFIX = ".json", ".html"


def report_path(text: str) -> Path:
    """Returns where a report goes. Raises InputError, before anything is read, for a place that cannot be written."""
    path = location(text)
    if is_remote(path):
        raise InputError(f"--report is {text}; give a file of this machine.")
    if path.suffix != SUFFIX:
        raise InputError(f"--report is {text}; give a name that ends in {SUFFIX}, a page in HTML is put beside it.")
    if not path.parent.is_dir() or path.is_dir():
        what = "is a folder" if path.is_dir() else "lies in a folder that is not there"
        raise InputError(f"--report {text} {what}; give the name of a file in one that is.")
    if not os.access(path.parent, os.W_OK):
        raise InputError(
            f"--report {text} lies in a folder that cannot be written; give the name of a file in another."
        )
    return path


def write_report(path: Path, report: dict[str, Any]) -> None:
    """Writes a report and its page, each whole. Raises InputError where they cannot be written."""
    texts = {path: json.dumps(report, indent=1, ensure_ascii=False), path.with_suffix(PAGE_SUFFIX): html_report(report)}
    for file, text in texts.items():
        with reaching(file, "written"):
            write_whole(file, text, f".{file.name}.tmp", replace=True)


def job_report(summary: Summary, configuration: dict[str, Any], gpu_price: float | None) -> dict[str, Any]:
    """Returns all that a job tells of itself, as JSON has it."""
    whole = summary.series.whole()
    return {
        "configuration": configuration,
        "documents": {"found": summary.total, **summary.shares},
        "pages": {
            "read": summary.pages,
            "bad": summary.bad_pages,
            "read_again": summary.retries,
            "read_by_earlier_runs": summary.ledger_pages,
            "finish_reasons": dict(summary.finish_reasons),
        },
        "ended_by": _ended_by(summary),
        "seconds": summary.seconds,
        "pages_per_second": summary.pages_per_second,
        "tokens": summary.tokens,
        "tokens_per_second": summary.tokens_per_second,
        "gpu_price": gpu_price,
        "cost_per_million_pages": None if gpu_price is None else summary.cost_per_million_pages(gpu_price),
        **_costs(whole, summary.pages),
        "failures": _failures(summary.failures),
        "other_files": dict(summary.other_files.most_common()),
        "attachments": {as_text(path): count for path, count in summary.attachments.most_common(LISTED)},
        "over_time": [_moment(interval) for interval in summary.series.intervals],
    }


def configuration_of(engine: EngineConfig, config: JobConfig) -> dict[str, Any]:
    """Returns what a job was asked for, and with what it was read."""
    settings = engine.settings(config.max_new_tokens)
    job = {name: getattr(config, name) for name in ("format", "pages", "limit", "retries", "max_page_error_rate")}
    return {
        **settings,
        "asked_model": engine.model,
        "devices": list(engine.devices),
        "batch_size": engine.batch_size,
        "backend": engine.options.build.get("backend"),
        "runtime": dict(engine.options.runtime),
        **job,
    }


def _ended_by(summary: Summary) -> str:
    if summary.stopped is not None:
        return str(summary.stopped)
    if summary.terminated:
        return "SIGTERM"
    return "interrupt" if summary.interrupted else "limit" if summary.is_limited else "end"


def _costs(whole: Interval, pages: int) -> dict[str, Any]:
    """Returns what stages and devices cost, how long the queues were, and what follows of it."""
    measures, binding = whole.measures, bottleneck(whole)
    share = measures.device_share(whole.seconds)
    stages = sorted(measures.stages.items(), key=lambda item: -item[1])
    return {
        "binds": binding and {"stage": binding.stage, "reason": binding.reason},
        "stages": {
            name: {"cpu_seconds": seconds, "cpu_ms_a_page": seconds / pages * 1e3 if pages else None}
            for name, seconds in stages
        },
        "device": {"share": share, "seconds": dict(measures.device)} if measures.device else None,
        "queues": measures.queues and vars(measures.queues),
    }


def _failures(failures: list[Failure]) -> dict[str, Any]:
    rows = [{"document": as_text(f.document), "page": f.page, "kind": f.kind, "reason": f.reason} for f in failures]
    kinds = Counter(failure.kind for failure in failures)
    return {"kinds": dict(kinds.most_common()), "first": rows[:LISTED], "left_out": len(rows[LISTED:])}


def _moment(interval: Interval) -> dict[str, Any]:
    queues = interval.measures.queues
    return {
        "until": interval.until,
        "seconds": interval.seconds,
        "pages_per_second": interval.pages / interval.seconds,
        "tokens_per_second": interval.tokens / interval.seconds,
        "device_share": interval.measures.device_share(interval.seconds),
        "preparing": queues and queues.preparing,
        "ready": queues and queues.ready,
        "running": queues and queues.running,
    }
