"""Ranks that are threads of one process: what they compute is what processes would, and each test is quick."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from vlm.api.model.following import follow_first_rank
from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.config import RuntimeConfig
from vlm.parallel.collectives import OneHost, OneRank, Ranks
from vlm.parallel.mapping import Mapping
from vlm.parallel.recording import Recorded
from vlm.registry.networks import mapping_of

T = TypeVar("T")
U = TypeVar("U")
SECONDS = 600  # a rank that waits so long waits for one that has failed


class Exchange:
    """Where the threads of a group lay down what the others take."""

    def __init__(self, size: int):
        self.barrier, self.values = threading.Barrier(size, timeout=SECONDS), [None] * size

    def all(self, rank: int, value: T) -> list[T]:
        """Returns the values of all ranks, in their order."""
        self.values[rank] = value
        self.barrier.wait()
        values = list(self.values)
        self.barrier.wait()  # nobody lays down the next one before all have taken these
        return values


class World:
    """The exchanges of all groups that there are, each made when its first thread asks for it."""

    def __init__(self) -> None:
        self.lock, self.exchanges, self.failed = threading.Lock(), dict[tuple[str, tuple[int, ...]], Exchange](), False

    def exchange(self, use: str, ranks: Iterable[int]) -> Exchange:
        with self.lock:
            group = tuple(ranks)
            exchange = self.exchanges.setdefault((use, group), Exchange(len(group)))
            if self.failed:
                exchange.barrier.abort()
            return exchange

    def fail(self) -> None:
        """Wakes up those that would wait for a thread that has failed."""
        with self.lock:
            self.failed = True
            for exchange in self.exchanges.values():
                exchange.barrier.abort()


class Threads(OneRank):
    """The collectives of one thread in a group of them."""

    def __init__(self, world: World, group: range, rank: int):
        self.world, self.group, self.rank = world, group, group.index(rank)
        self.exchange = world.exchange("group", group)

    def all_reduce(self, x: Tensor) -> Tensor:
        return torch.stack(self.exchange.all(self.rank, x)).sum(0)

    def all_gather(self, x: Tensor) -> Tensor:
        return torch.cat(self.exchange.all(self.rank, x), -1)

    def broadcast(self, x: Tensor, root: int) -> Tensor:
        values = self.exchange.all(self.rank, x)
        assert {(each.shape, each.dtype) for each in values} == {(x.shape, x.dtype)}
        return values[root]

    def send(self, x: Tensor, to: int) -> None:
        self._pair(self.rank, to).all(0, x)

    def receive(self, x: Tensor, sender: int) -> Tensor:
        [sent, _] = self._pair(sender, self.rank).all(1, x)
        assert (sent.shape, sent.dtype) == (x.shape, x.dtype)
        return sent

    def _pair(self, sender: int, to: int) -> Exchange:
        return self.world.exchange("pair", (self.group[sender], self.group[to]))


class Hosts(OneHost):
    """What a thread tells all others."""

    def __init__(self, exchange: Exchange, rank: int):
        self.exchange, self.rank = exchange, rank

    def minimum(self, value: int) -> int:
        return min(self.exchange.all(self.rank, value))

    def broadcast(self, value: Any = None) -> Any:
        return pickle.loads(self.exchange.all(self.rank, pickle.dumps(value))[0])  # a copy, as processes have


def ranks_of(world: World, mapping: Mapping) -> Ranks:
    """Returns one thread's place among all, and its groups."""
    groups = mapping.groups
    collectives = {
        name: Recorded(Threads(world, group, mapping.rank)) if len(group) > 1 else OneRank()
        for name, group in groups.items()
    }
    hosts = Hosts(world.exchange("hosts", groups["all"]), mapping.rank)
    return Ranks(mapping.rank, mapping.size, hosts, **collectives)


def on_ranks(mapping: Mapping, work: Callable[[Ranks], U]) -> list[U]:
    """Returns what `work` returns on each rank of a mapping."""
    world, size = World(), mapping.size

    def run(rank: int) -> U:
        try:
            return work(ranks_of(world, replace(mapping, rank=rank)))
        except BaseException:
            world.fail()
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

    [result, *_] = on_ranks(mapping_of(engine), run)
    assert result is not None
    return result
