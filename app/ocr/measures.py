"""What a job costs and what waits for what, as its reader sees it: values that processes can exchange and add up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

Seconds = Mapping[str, float]  # by what they went to


@dataclass(frozen=True)
class Queues:
    """Where pages are at a moment, or on average over a span of time, and the places that there are for them."""

    workers: float = 0  # processes that prepare pages; 0: threads of the engine's process do it
    slots: float = 0  # pages that the engines read at once
    preparing: float = 0  # pages that are being drawn and made an engine's input
    ready: float = 0  # pages that wait for an engine
    running: float = 0  # pages in an engine

    def __add__(self, other: Queues) -> Queues:
        values = asdict(other)
        return Queues(**{name: value + values[name] for name, value in asdict(self).items()})

    @property
    def pages(self) -> float:
        """Returns how many pages are on their way."""
        return self.preparing + self.ready + self.running

    def scaled(self, factor: float) -> Queues:
        return Queues(**{name: value * factor for name, value in asdict(self).items()})


@dataclass(frozen=True)
class Measures:
    """What was done since a job began, and what goes on now. None: not known."""

    stages: Seconds = field(default_factory=dict)  # of the CPU
    device: Seconds | None = field(default_factory=dict)  # of devices at work: encode, prefill, decode
    retries: int = 0  # pages that were read again
    engines: int = 0
    queues: Queues | None = field(default_factory=Queues)
    compile_seconds: float = 0.0  # in which engines waited for kernels to be compiled

    def __add__(self, other: Measures) -> Measures:
        """Returns those of two parts of a job that go on side by side."""
        return Measures(
            added(self.stages, other.stages),
            None if self.device is None or other.device is None else added(self.device, other.device),
            compile_seconds=max(self.compile_seconds, other.compile_seconds),
            retries=self.retries + other.retries,
            engines=self.engines + other.engines,
            queues=None if self.queues is None or other.queues is None else self.queues + other.queues,
        )

    def since(self, earlier: Measures) -> Measures:
        """Returns what was done after another moment, and what goes on now."""
        return replace(
            self,
            stages=added(self.stages, earlier.stages, sign=-1),
            device=None if self.device is None else added(self.device, earlier.device or {}, sign=-1),
            compile_seconds=self.compile_seconds - earlier.compile_seconds,
            retries=self.retries - earlier.retries,
        )

    def device_share(self, seconds: float) -> float | None:
        """Returns the part of so many seconds that the devices were at work, on average over them."""
        if self.device is None or not self.engines or not seconds:
            return None
        return min(1.0, sum(self.device.values()) / (seconds * self.engines))


@dataclass(frozen=True)
class Interval:
    """What a job did in a span of its time."""

    until: float  # seconds after its begin
    seconds: float  # its length
    pages: int = 0
    tokens: int = 0
    measures: Measures = field(default_factory=Measures)  # costs of this span, means of the queues

    def __add__(self, later: Interval) -> Interval:
        """Returns the span of two that follow each other."""
        seconds = self.seconds + later.seconds
        both, share = self.measures + later.measures, later.seconds / seconds
        ours, theirs = self.measures.queues, later.measures.queues
        mean = None if ours is None or theirs is None else ours.scaled(1 - share) + theirs.scaled(share)
        measures = replace(both, engines=later.measures.engines, queues=mean)
        return Interval(later.until, seconds, self.pages + later.pages, self.tokens + later.tokens, measures)


def added(a: Seconds, b: Seconds, sign: int = 1) -> Seconds:
    """Returns the sum by name, or the difference where the sign is -1."""
    return {name: a.get(name, 0.0) + sign * b.get(name, 0.0) for name in {**a, **b}}
