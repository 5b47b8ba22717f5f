"""What a job did, as it goes on and at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from vlm.errors import VlmError, counted, listed
from vlm_app.ocr.bottleneck import bottleneck
from vlm_app.ocr.documents.sources import other_files_notice
from vlm_app.ocr.outputs import OCCUPIED
from vlm_app.ocr.time_series import TimeSeries


@dataclass(frozen=True)
class Failure:
    """A page (from 1), or a whole document, that could not be read, or not as it should."""

    document: Path
    page: int | None
    reason: str
    kind: str = "damaged"


@dataclass
class Summary:
    """What one run did. Counts hold for this run, failures for the documents that it was through with."""

    total: int = 0  # documents; each is one of the next four, or unfinished
    documents: int = 0  # written
    skipped: int = 0  # their output was there
    refused: int = 0  # the place of their output is another file's
    failed: int = 0
    pages: int = 0  # read
    ledger_pages: int = 0  # pages that an earlier run had read
    bad_pages: int = 0  # so far; `failures` has those of documents that are done
    tokens: int = 0
    seconds: float = 0.0  # so far, without the loading of models
    retries: int = 0  # pages that were read again
    engines: int = 1
    failures: list[Failure] = field(default_factory=list)
    other_files: Counter[str] = field(default_factory=Counter)  # files that are no documents, by their endings
    attachments: Counter[Path] = field(default_factory=Counter)  # of documents that were opened: not read
    finish_reasons: Counter[str] = field(default_factory=Counter)
    partial: list[Path] = field(default_factory=list)  # of documents that were interrupted
    interrupted: bool = False
    terminated: bool = False  # it was interrupted by SIGTERM
    is_limited: bool = False  # it read as many pages as it was to, and documents are left
    stopped: VlmError | None = None  # what ended the job
    series: TimeSeries = field(default_factory=TimeSeries)

    def fail(self, document: Path, kind: str, reason: str) -> None:
        """Counts a document that the job is through with, without an output."""
        self.failures.append(Failure(document, None, reason, kind))
        if kind == OCCUPIED:
            self.refused += 1
        else:
            self.failed += 1

    @property
    def done(self) -> int:
        """Documents that the job is through with, whatever came of them."""
        return self.documents + self.skipped + self.refused + self.failed

    @property
    def shares(self) -> dict[str, int]:
        """Returns what became of the documents: numbers that add up."""
        ended = {"written": self.documents, "skipped": self.skipped, "refused": self.refused, "failed": self.failed}
        return ended | {"unfinished": self.total - self.done}

    @property
    def is_complete(self) -> bool:
        """Says whether every page of every document that was found is in its output; of a job with a limit, every
        page within it."""
        is_whole = self.done == self.total or self.is_limited
        return not self.failures and not self.refused and not self.failed and is_whole

    @property
    def pages_per_second(self) -> float:
        return self.pages / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    def cost_per_million_pages(self, gpu_price: float) -> float | None:
        """Returns the cost at `gpu_price` an hour and engine, in its currency; None where no page was read."""
        if not self.pages:
            return None
        return gpu_price * self.engines * self.seconds / 3600 / self.pages * 1e6


def live(summary: Summary, documents: int) -> str:
    """Returns a line while the job runs."""
    parts = [f"{summary.done:,} of {counted(documents, 'document')}", counted(summary.pages, "page")]
    parts += [f"{summary.pages_per_second:.1f} pages/s", f"{summary.tokens_per_second:.0f} tokens/s"]
    if failures := summary.bad_pages + sum(failure.page is None for failure in summary.failures):
        parts.append(f"{failures} failed")
    if binding := bottleneck(summary.series.recent()):
        parts.append(binding.reason)
    return ", ".join(parts)


def totals(summary: Summary, gpu_price: float | None = None) -> Iterator[str]:
    """Yields lines of the final report."""
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(summary.finish_reasons.items()))
    counts = {"document": summary.documents, "page": summary.pages, "token": summary.tokens}
    text = ", ".join(counted(count, noun) for noun, count in counts.items())
    yield f"{text} in {summary.seconds:.1f} s" + (f" ({reasons})" if reasons else "")
    yield _shares(summary)
    if summary.pages:
        yield f"{summary.pages_per_second:.2f} pages/s, {summary.tokens_per_second:.1f} tokens/s"
    if binding := bottleneck(summary.series.whole()):
        yield f"what bounds it: {binding.reason}"
    if summary.ledger_pages:
        yield f"{counted(summary.ledger_pages, 'page')} had been read before and came from the ledger"
    if summary.failures:
        kinds = Counter(failure.kind for failure in summary.failures).most_common()
        yield "failures: " + ", ".join(f"{count} {kind}" for kind, count in kinds)
    if gpu_price is not None and (cost := summary.cost_per_million_pages(gpu_price)) is not None:
        yield f"cost: {cost:,.2f} a million pages, at {gpu_price:g} an hour a device, {summary.engines} at work"


def _shares(summary: Summary) -> str:
    shares = [f"{count} {name}" for name, count in summary.shares.items() if count or name == "written"]
    return f"{summary.total} found: {', '.join(shares)}"


def complaints(summary: Summary) -> Iterator[str]:
    """Tells what was not done, page by page."""
    if summary.skipped:
        skipped = counted(summary.skipped, "document")
        yield f"{skipped} skipped: the output is there (--recompute reads it again)."
    if summary.other_files:
        yield other_files_notice(summary.other_files)
    if summary.attachments:
        files = counted(summary.attachments.total(), "attachment")
        yield f"left out: {files} of {listed(summary.attachments)}; save them as files of their own to read them."
    for failure in summary.failures:
        where = f"{failure.document} page {failure.page}" if failure.page else str(failure.document)
        yield f"not read: {where}: {failure.reason}"
    partial = f"; finished pages of the others are in {listed(summary.partial)}" if summary.partial else ""
    if summary.interrupted:
        how = "ended by SIGTERM" if summary.terminated else "interrupted"
        yield f"{how}: {counted(summary.documents, 'document')} finished{partial}."
    if summary.is_limited:
        yield f"the limit of pages is reached{partial}; the same command without --limit reads the rest."
