"""The outcome of all checks: verdicts, and pass rates by kind, file and folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from vlm_app.ocr.checks.check import Check
from vlm_app.ocr.checks.check_file import Entry
from vlm_app.ocr.checks.judging import FAILED, Judge, Verdict
from vlm_app.ocr.checks.rates import Rate, interval, mean_percent
from vlm_app.ocr.checks.readings import Page, Reading, page_of


@dataclass(frozen=True)
class Result:
    """A check and what came of it."""

    entry: Entry
    verdict: Verdict

    @property
    def check(self) -> Check:
        return self.entry.check

    def record(self) -> dict[str, Any]:
        check, entry = self.check, self.entry
        place = {"file": str(entry.file) if entry.line else None, "line": entry.line}
        own = {"id": check.id, "pdf": check.pdf, "page": check.page, "type": check.type}
        return {**own, **place, **asdict(self.verdict)}


def judged(entries: Iterable[Entry], readings: Mapping[Page, Reading]) -> list[Result]:
    """Judges the checks page by page. A page that was not read fails whatever is checked of it."""
    with contextlib.closing(Judge()) as judge:
        return [
            Result(entry, _verdict(judge, entry, readings[page_of(entry)])) for entry in sorted(entries, key=page_of)
        ]


def _verdict(judge: Judge, entry: Entry, reading: Reading) -> Verdict:
    if reading.texts or entry.check.unjudged:
        return judge.verdict(entry.check, reading.texts)
    return Verdict(FAILED, f"the page was not read: {reading.error.rstrip('.')}")


@dataclass(frozen=True)
class Score:
    """The results of checks on what was read by `source`: a model, or a folder of texts."""

    source: str
    results: list[Result]
    readings: Mapping[Page, Reading]

    @cached_property
    def whole(self) -> Rate:
        return _rate(self.results)

    @cached_property
    def kinds(self) -> dict[str, Rate]:
        return self._grouped(lambda entry: entry.check.type)

    @cached_property
    def files(self) -> dict[str, Rate]:
        """Returns the rates by file of checks; baselines that no file has are "baseline", as in olmOCR-bench."""
        return self._grouped(lambda entry: entry.file.stem)

    @cached_property
    def folders(self) -> dict[str, Rate]:
        return self._grouped(lambda entry: str(PurePosixPath(entry.check.pdf).parent))

    @property
    def failures(self) -> list[Result]:
        """Returns the checks that failed on pages that were read."""
        return [r for r in self.results if r.verdict.outcome == FAILED and self.readings[page_of(r.entry)].texts]

    def record(self) -> dict[str, Any]:
        """Returns all figures, verdicts and texts, for JSON."""
        files = self.files.values()
        return {
            "source": self.source, "pages": len(self.readings), "checks": len(self.results), **self.whole.record(),
            "mean_of_files": mean_percent(files), "mean_of_files_interval": interval(files),
            "kinds": _records(self.kinds), "files": _records(self.files), "folders": _records(self.folders),
            "results": [result.record() for result in self.results],
            "texts": [{"pdf": pdf, "page": page, **asdict(r)} for (_, pdf, page), r in self.readings.items()],
        }  # fmt: skip

    def _grouped(self, name_of: Callable[[Entry], str]) -> dict[str, Rate]:
        groups: dict[str, list[Result]] = {}
        for result in self.results:
            groups.setdefault(name_of(result.entry), []).append(result)
        return {name: _rate(groups[name]) for name in sorted(groups)}


def _rate(results: Iterable[Result]) -> Rate:
    return Rate.from_outcomes(result.verdict.outcome for result in results)


def _records(rates: Mapping[str, Rate]) -> dict[str, dict[str, Any]]:
    return {name: rate.record() for name, rate in rates.items()}
