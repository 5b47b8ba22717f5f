"""What ranks tell each other in a pass, recorded so that it can be done again by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from vlm.parallel.collectives import Collectives, Ranks


@dataclass(frozen=True)
class Call:
    """One call of a group's collectives, with a tensor of its own of the same shape and type."""

    collectives: Collectives
    method: str
    x: Tensor
    peers: tuple[int, ...]  # root, receiver or sender

    def repeat(self) -> None:
        getattr(self.collectives, self.method)(self.x, *self.peers)


class Recorded:
    """Collectives that put what they are called for into `calls`, while that is a list."""

    def __init__(self, collectives: Collectives):
        self._collectives = collectives
        self.calls: list[Call] | None = None

    def all_reduce(self, x: Tensor) -> Tensor:
        self._record("all_reduce", x)
        return self._collectives.all_reduce(x)

    def all_gather(self, x: Tensor) -> Tensor:
        self._record("all_gather", x)
        return self._collectives.all_gather(x)

    def broadcast(self, x: Tensor, root: int) -> Tensor:
        self._record("broadcast", x, root)
        return self._collectives.broadcast(x, root)

    def send(self, x: Tensor, to: int) -> None:
        self._record("send", x, to)
        self._collectives.send(x, to)

    def receive(self, x: Tensor, sender: int) -> Tensor:
        self._record("receive", x, sender)
        return self._collectives.receive(x, sender)

    def abort(self) -> None:
        self._collectives.abort()

    def close(self) -> None:
        self._collectives.close()

    def _record(self, method: str, x: Tensor, *peers: int) -> None:
        if self.calls is not None:
            own = torch.zeros_like(x, memory_format=torch.contiguous_format)
            self.calls.append(Call(self._collectives, method, own, peers))


@contextmanager
def recorded(ranks: Ranks) -> Iterator[list[Call]]:
    """Gives a list that the calls of these ranks' collectives are put into meanwhile, those of all groups in order."""
    calls: list[Call] = []
    groups = [group for group in ranks.groups if isinstance(group, Recorded)]
    for group in groups:
        group.calls = calls
    try:
        yield calls
    finally:
        for group in groups:
            group.calls = None
