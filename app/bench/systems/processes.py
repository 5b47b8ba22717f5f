"""What the processes of a job use: this one and all below it, as Linux's /proc tells of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

PROC = Path("/proc")
SECONDS_BETWEEN_SAMPLES = 0.25  # of memory, which has a highest value in between
# of /proc/PID/stat, after the name
PARENT, TIMES, RSS = 1, slice(11, 15), 21  # times: own in user and system mode, then those of children that ended


@dataclass(frozen=True)
class Sample:
    """A look at all processes at once. None: this system does not tell."""

    cpu_seconds: float
    rss_bytes: int | None = None  # a page that several share counts in each
    processes: int | None = None


def sample(without: Collection[int] = ()) -> Sample:
    """Looks at this process and those below it, `without` some and what is below them."""
    if not (PROC / "self" / "stat").is_file():
        return Sample(sum(os.times()[:4]))
    stats = _tree(without)
    ticks = sum(int(value) for stat in stats for value in stat[TIMES])
    pages = sum(int(stat[RSS]) for stat in stats)
    return Sample(ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE"), len(stats))


def _tree(without: Collection[int]) -> list[list[str]]:
    """Returns the fields of each process's stat."""
    stats, children = dict(_stats()), dict[int, list[int]]()
    for pid, stat in stats.items():
        children.setdefault(int(stat[PARENT]), []).append(pid)
    pending, tree = [os.getpid()], []
    while pending:
        pid = pending.pop()
        tree.append(stats[pid])
        pending += [child for child in children.get(pid, ()) if child not in without]
    return tree


def _stats() -> Iterator[tuple[int, list[str]]]:
    for name in filter(str.isdigit, os.listdir(PROC)):
        try:
            stat = (PROC / name / "stat").read_text("utf-8", "replace")
        except OSError:  # it has just ended
            continue
        yield int(name), stat.rpartition(")")[2].split()  # a name may hold anything


class ProcessMeter:
    """Measures within `with`: the processor time that was used, the most memory and the most processes at a time."""

    def __init__(self, without: Collection[int] = ()):
        self.cpu_seconds = 0.0
        self.peak_rss_bytes: int | None = None
        self.processes: int | None = None
        self._without, self._ended = without, threading.Event()
        self._thread = threading.Thread(target=self._watch, name="process-meter", daemon=True)

    def __enter__(self) -> Self:
        self._begin = self._look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self.cpu_seconds = self._look().cpu_seconds - self._begin.cpu_seconds

    def _watch(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_SAMPLES):
            self._look()

    def _look(self) -> Sample:
        now = sample(self._without)
        if now.rss_bytes is not None and now.processes is not None:
            self.peak_rss_bytes = max(now.rss_bytes, self.peak_rss_bytes or 0)
            self.processes = max(now.processes, self.processes or 0)
        return now
