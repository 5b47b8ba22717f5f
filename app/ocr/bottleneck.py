"""What bounds a job: the devices, the processes that prepare pages, or the thread that drives the engine and writes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vlm.errors import counted
from vlm_app.ocr.measures import Interval, Measures, Queues

ENGINE = "engine"
PREPARING = ("open", "draw", "process", "prepare")  # stages of a page on its way to an engine
HANDLING = ("decode", "post-process", "write")  # stages of the thread that gives engines their work and takes results
OF_DOCUMENTS = ("open", "write")  # stages that cost something before a page has been read
WORDS = {
    "open": "opening documents",
    "draw": "drawing",
    "process": "the image processor",
    "prepare": "preparing inputs",
    "decode": "driving the engine",
    "post-process": "post-processing",
    "write": "writing",
}
BUSY = 0.8  # of its time: a device that is at work so long bounds the job
FULL = 0.9  # of its slots: an engine with so many pages does not starve
WAITING = 1.0  # pages an engine: where fewer wait for it, on average, it runs out of them


@dataclass(frozen=True)
class Bottleneck:
    """The stage that bounds a job, and how one can tell."""

    stage: str  # ENGINE, or one of WORDS
    reason: str


def bottleneck(span: Interval) -> Bottleneck | None:
    """Returns what bounded a job in a span of its time; None where that is not known, as before its first page has been
    read, or no page was due."""
    measures, queues = span.measures, span.measures.queues
    share = measures.device_share(span.seconds)
    if share is None or queues is None or not (span.pages or share or queues.pages):
        return None
    if _is_starved(queues, WAITING * measures.engines):
        stage = _costliest(measures, PREPARING, default="draw") if _knows_pages(span, PREPARING) else "prepare"
        where = f"{_workers(queues)}{_waiting(queues)}, {_busy(measures, share)}"
        return Bottleneck(stage, f"{WORDS[stage]} binds: {where}")
    if share >= BUSY:
        return Bottleneck(ENGINE, f"{_busy(measures, share)}, {_waiting(queues)}")
    if not _knows_pages(span, HANDLING):
        return None
    stage = _costliest(measures, HANDLING, default="decode")
    return Bottleneck(stage, f"{WORDS[stage]} binds: {_busy(measures, share)}, {_waiting(queues)}")


def _knows_pages(span: Interval, stages: Iterable[str]) -> bool:
    """Says whether a page has gone through these stages, and not a document alone: what a page costs is known at its
    end."""
    return bool(span.pages) or any(span.measures.stages.get(each) for each in stages if each not in OF_DOCUMENTS)


def _is_starved(queues: Queues, pages: float) -> bool:
    """Says whether engines have room for more, and fewer pages than these wait, while as many are being prepared."""
    return queues.ready < pages <= queues.preparing and queues.running < FULL * queues.slots


def _workers(queues: Queues) -> str:
    busy = min(queues.preparing, queues.workers)
    return f"{busy:.0f} of {queues.workers:.0f} workers busy, " if queues.workers else ""


def _costliest(measures: Measures, stages: Iterable[str], default: str) -> str:
    known = [stage for stage in stages if measures.stages.get(stage)]
    return max(known, key=lambda stage: measures.stages[stage], default=default)


def _busy(measures: Measures, share: float) -> str:
    return f"device{'s' if measures.engines > 1 else ''} {share:.0%} busy"


def _waiting(queues: Queues) -> str:
    count = round(queues.ready)
    return f"{counted(count, 'page')} wait{'s' * (count == 1)} for the engine"
