"""What `vlm eval texts` scores, and by what."""

from __future__ import annotations

from dataclasses import dataclass

from vlm.errors import InputError
from vlm.options import check_limits, option
from vlm.ranges import at_least

METRICS = {"translate": ("exact", "bleu"), "summarize": ("exact", "rouge"), "answer": ("exact",)}  # of a task
THRESHOLDS = {"bleu": "bleu", "rouge1": "rouge", "exact": "exact"}  # score -> its metric
THRESHOLD = "Exit with 1 below this score (0 to 100)."


@dataclass(frozen=True)
class Scoring:
    """Which pairs are scored, by what. Raises InputError for what is unknown or not measured."""

    task: str = option("translate", "translate, summarize or answer (questions, about images or not).")
    metric: tuple[str, ...] = option((), "bleu (and chrF), rouge or exact; repeat it.", default="those of the task")
    limit: int | None = option(None, "The first so many pairs.", allowed=at_least(1))
    bleu_threshold: float | None = option(None, THRESHOLD)
    rouge1_threshold: float | None = option(None, THRESHOLD)
    exact_threshold: float | None = option(None, THRESHOLD)

    def __post_init__(self) -> None:
        check_limits(self, flags=True)
        if self.task not in METRICS:
            raise InputError(f"--task is {self.task!r}; allowed are {', '.join(METRICS)}.")
        names = sorted({name for names in METRICS.values() for name in names})
        if unknown := [name for name in self.metrics if name not in names]:
            raise InputError(f"--metric is {unknown[0]!r}; allowed are {', '.join(names)}.")
        for name, metric in THRESHOLDS.items():
            if self.thresholds[name] is not None and metric not in self.metrics:
                raise InputError(f"--{name}-threshold does not go with {self._why_not(metric)} add --metric {metric}.")

    def _why_not(self, metric: str) -> str:
        """Returns what leaves a metric out, and the task that has it where one is what says the metrics."""
        if self.metric:
            return f"--metric {' '.join(self.metric)};"
        task = next(task for task, names in METRICS.items() if metric in names)
        return f"--task {self.task}; give --task {task}, or"

    @property
    def metrics(self) -> tuple[str, ...]:
        """Returns what is measured."""
        return tuple(dict.fromkeys(self.metric or METRICS[self.task]))

    @property
    def thresholds(self) -> dict[str, float | None]:
        """Returns the score that each metric must reach."""
        return {name: getattr(self, f"{name}_threshold") for name in THRESHOLDS}
