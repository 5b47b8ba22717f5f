"""Ranks that are threads of one process: what they compute is what processes would, and each test is quick."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, TypeVar

import torch
from torch import Tensor

from vlm.api.following import follow_first_rank
from vlm.api.pipeline import Pipeline
from vlm.artifacts.engine_dir import EngineDir
from vlm.config import RuntimeConfig
from vlm.parallel.collectives import Ranks

T = TypeVar("T")
U = TypeVar("U")
SECONDS = 600  # a rank that waits so long waits for one that has failed


class Exchange:
    """Where threads lay down what the others take."""

    def __init__(self, size: int):
        self.size, self.barrier, self.values = size, threading.Barrier(size, timeout=SECONDS), [None] * size

    def all(self, rank: int, value: T) -> list[T]:
        """Returns the values of all ranks, in their order."""
        self.values[rank] = value
        self.barrier.wait()
        values = list(self.values)
        self.barrier.wait()  # nobody lays down the next one before all have taken these
        return values


class Threads:
    """The collectives of one thread."""

    def __init__(self, exchange: Exchange, rank: int):
        self.exchange, self.rank, self.calls = exchange, rank, 0

    def _all(self, value: T) -> list[T]:
        self.calls += 1
        return self.exchange.all(self.rank, value)

    def all_reduce(self, x: Tensor) -> Tensor:
        return torch.stack(self._all(x)).sum(0)

    def all_gather(self, x: Tensor) -> Tensor:
        return torch.cat(self._all(x), -1)

    def minimum(self, value: int) -> int:
        return min(self._all(value))

    def broadcast(self, value: Any = None) -> Any:
        return self._all(value)[0]


def on_ranks(size: int, work: Callable[[Ranks], U]) -> list[U]:
    """Returns what `work` returns on each of so many ranks."""
    exchange = Exchange(size)

    def run(rank: int) -> U:
        try:
            return work(Ranks(rank, size, Threads(exchange, rank)))
        except BaseException:
            exchange.barrier.abort()  # the others would wait
            raise

    with ThreadPoolExecutor(size) as threads:
        futures = [threads.submit(run, rank) for rank in range(size)]
    errors = [error for future in futures if (error := future.exception())]
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error
    return [future.result() for future in futures]


def with_followers(engine: EngineDir, runtime: RuntimeConfig, work: Callable[[Pipeline], U]) -> U:
    """Returns what `work` returns for the pipeline of an engine that as many ranks run as it is built for."""

    def run(ranks: Ranks) -> U | None:
        if ranks.rank:
            return follow_first_rank(engine, runtime, ranks)
        with closing(Pipeline(engine, runtime, ranks)) as pipeline:
            return work(pipeline)

    [result, *_] = on_ranks(engine.build.tp_size, run)
    assert result is not None
    return result
