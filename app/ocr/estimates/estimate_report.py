"""What an estimate says: lines for people, or JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from vlm.errors import counted
from vlm_app.core.names import as_text
from vlm_app.ocr.estimates.bootstrap import LEVEL, Value
from vlm_app.ocr.estimates.estimate import Estimate
from vlm_app.ocr.estimates.sample_run import Sample
from vlm_app.ocr.estimates.sampling import Census
from vlm_app.ocr.reports.html_report import lasting


@dataclass(frozen=True)
class EstimateReport:
    """An estimate, what it was made of, and the price of a device an hour."""

    estimate: Estimate
    census: Census
    sample: Sample
    seed: int
    gpu_price: float | None

    def as_json(self) -> dict[str, Any]:
        """Returns all of it as JSON has it; durations in seconds."""
        numbers = asdict(self.estimate)
        binding = numbers.pop("binding")
        span, whole, pages = self.sample.span, self.sample.summary.series.whole(), len(self.sample.pages)
        timed = pages - self.sample.num_untimed
        return {
            **numbers,
            "level": LEVEL,
            "gpu_price": self.gpu_price,
            "binds": binding,
            "device_share": span.measures.device_share(span.seconds),
            "cpu_ms_a_page": {name: each / timed * 1e3 for name, each in whole.measures.stages.items() if timed},
            "documents": {
                "found": self.census.num_documents,
                "counted": len(self.census.counts),
                "unreadable": [
                    {"document": as_text(f.document), "kind": f.kind, "reason": f.reason} for f in self.census.failures
                ],
            },
            "sample": {
                "pages": pages,
                "timed": timed,
                "documents": self.num_sampled_documents,
                "read_again": self.sample.summary.retries,
                "seconds": self.sample.summary.seconds,
                "is_steady": self.sample.is_steady,
                "seed": self.seed,
            },
        }

    @property
    def num_sampled_documents(self) -> int:
        return len({page.document for page in self.sample.pages})

    @property
    def is_too_small(self) -> bool:
        """Says whether there are more pages than were read, and too few were to see the engines full."""
        return not self.sample.is_steady and self.estimate.pages.estimate > len(self.sample.pages)

    def lines(self) -> Iterator[str]:
        """Yields what people read."""
        estimate, price = self.estimate, self.gpu_price
        yield f"pages: {_counted(estimate.pages)} in {counted(self.census.num_documents, 'document')}{self._unopened()}"
        yield f"time: {_lasting(estimate.seconds)}, {_ranged(estimate.pages_per_second, '{:,.2f}')} pages/s"
        if estimate.cost and estimate.cost_per_million_pages:
            yield f"cost: {_ranged(estimate.cost, '{:,.2f}')} at {price:g} an hour a device"
            yield f"cost of a million pages: {_ranged(estimate.cost_per_million_pages, '{:,.2f}')}"
        yield f"tokens: {_ranged(estimate.tokens, '{:,.0f}')}"
        yield f"bad pages: {_ranged(estimate.error_rate, '{:.2%}')}"
        if estimate.binding:
            yield f"what bounds it: {estimate.binding.reason}"
        read = f"{counted(len(self.sample.pages), 'page')} of {counted(self.num_sampled_documents, 'document')}"
        lacking = "; a larger --sample tells those of the other numbers" if estimate.seconds.low is None else ""
        yield f"read for this: {read}; in brackets: {LEVEL:.0%} intervals{lacking}"

    def _unopened(self) -> str:
        census = self.census
        opened = "" if census.is_whole else f" ({len(census.counts):,} were opened)"
        kinds = Counter(failure.kind for failure in census.failures).most_common()
        failed = ", ".join(f"{count} {kind}" for kind, count in kinds)
        return opened + (f"; cannot be opened: {failed}" if failed else "")


def _counted(value: Value) -> str:
    return f"{value.estimate:,.0f}" if value.low == value.high else _ranged(value, "{:,.0f}")


def _ranged(value: Value, form: str) -> str:
    return _with_interval(value, form.format)


def _lasting(value: Value) -> str:
    return _with_interval(value, lasting)


def _with_interval(value: Value, show: Callable[[float], str]) -> str:
    if value.low is None or value.high is None:
        return show(value.estimate)
    return f"{show(value.estimate)} ({show(value.low)} to {show(value.high)})"
