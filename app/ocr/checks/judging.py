"""Judges checks in a process of its own: a text that repeats itself may keep a fuzzy search busy for hours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from vlm.processing.workers.process import Budget, WorkerFailure, WorkerProcess
from vlm_app.ocr.checks.check import Check
from vlm_app.ocr.checks.libraries import check_installed
from vlm_app.ocr.checks.page_text import PageText

BUDGET = Budget(seconds=20.0, memory_mb=1024)  # of a check on one text
FAILURES = {"timeout": f"judging takes longer than {BUDGET.seconds:g} s", "memory": "judging takes too much memory"}
PASSED, FAILED, NOT_JUDGED = "passed", "failed", "not judged"


@dataclass(frozen=True)
class Verdict:
    """What came of a check: PASSED, FAILED or NOT_JUDGED, and why."""

    outcome: str
    reason: str = ""


class Judge:
    """Holds the process; use by one thread. Raises InputError where a package is missing."""

    def __init__(self, budget: Budget = BUDGET):
        check_installed()
        self._worker = WorkerProcess(budget, preload=__name__)

    def close(self) -> None:
        self._worker.close()

    def verdict(self, check: Check, texts: Iterable[str]) -> Verdict:
        """Judges a page by its texts: one, or those of several readings, of which more than half must pass."""
        if check.unjudged:
            return Verdict(NOT_JUDGED, check.unjudged)
        failures = [self._failure(check, text) for text in texts]
        reasons = [reason for reason in failures if reason is not None]
        if 2 * len(reasons) < len(failures):
            return Verdict(PASSED)
        return Verdict(FAILED, reasons[0])

    def _failure(self, check: Check, text: str) -> str | None:
        try:
            return self._worker.run(failure, check, text)
        except WorkerFailure as error:
            return FAILURES.get(error.kind, f"judging it has ended ({error.kind})")


def failure(check: Check, text: str) -> str | None:
    """Returns why a text does not pass, None where it does. A text that a parser refuses does not."""
    try:
        return check.failure(_page_text(text))
    except MemoryError:
        raise
    except Exception as error:  # of a package, about a text that may be anything
        return f"judging it has failed ({type(error).__name__})"


@lru_cache(maxsize=1)  # the checks of a page come one after the other
def _page_text(text: str) -> PageText:
    return PageText(text)
