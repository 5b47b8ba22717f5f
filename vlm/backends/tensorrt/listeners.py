"""TensorRT's callbacks: what it logs, and how far a build has come."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from vlm.artifacts.progress import Progress

STEPS = 1000

log = logging.getLogger(__name__)


class Phases:
    """Nested phases of known numbers of steps -> how much of all is done."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[int, int]] = {}  # phase -> (steps done, steps), outermost first
        self._furthest = 0.0

    def start(self, phase: str, steps: int) -> None:
        self._open[phase] = (0, max(steps, 1))

    def step(self, phase: str, step: int) -> None:
        if phase in self._open:
            self._open[phase] = (step + 1, self._open[phase][1])

    def finish(self, phase: str) -> None:
        self._open.pop(phase, None)

    def fraction(self) -> float:
        """Returns how much is done, 0 to 1; never less than before, though phases come back."""
        share, fraction = 1.0, 0.0
        for step, steps in self._open.values():
            fraction += share * min(step, steps) / steps
            share /= steps
        self._furthest = max(self._furthest, min(fraction, 1.0))
        return self._furthest


def last(errors: Sequence[str]) -> str:
    """Returns the first line of the last error, which mostly is the cause."""
    return errors[-1].strip().splitlines()[0][:400] if errors else "it does not say why."


def make_logger(trt: Any, errors: list[str]) -> Any:
    """Returns a logger that keeps errors for the sentence that the user gets; warnings go to Python's log."""

    class Logger(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                errors.append(message)
            elif severity == trt.ILogger.WARNING:
                log.info(message)

    return Logger()


def make_monitor(trt: Any, description: str, progress: Progress | None, interrupts: list[KeyboardInterrupt]) -> Any:
    """Returns a monitor that reports to `progress`; an interrupt is kept and ends the build, as no exception can."""
    phases = Phases()

    class Monitor(trt.IProgressMonitor):
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            phases.start(phase_name, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            try:
                phases.step(phase_name, step)
                if progress is not None:
                    progress(description, int(phases.fraction() * STEPS), STEPS)
            except KeyboardInterrupt as interrupt:
                interrupts.append(interrupt)
            return not interrupts

        def phase_finish(self, phase_name: str) -> None:
            phases.finish(phase_name)

    return Monitor()
