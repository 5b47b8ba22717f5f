"""What ranks that run the parts of a network tell each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor


class Collectives(Protocol):
    """What the ranks of a group do with tensors. All of them call the same methods in the same order, with tensors of
    the same shape and type; of `send` and `receive` it is the two that are named."""

    def all_reduce(self, x: Tensor) -> Tensor:
        """Returns the sum of the ranks' tensors, the same bits on every rank; x may be overwritten."""
        ...

    def all_gather(self, x: Tensor) -> Tensor:
        """Returns the ranks' columns [R, C] side by side, in the order of the ranks: [R, ranks · C]."""
        ...

    def broadcast(self, x: Tensor, root: int) -> Tensor:
        """Returns the tensor of one of the ranks, by its place in the group; those of the others may be overwritten."""
        ...

    def send(self, x: Tensor, to: int) -> None:
        """Sends x to one of the ranks, by its place in the group."""
        ...

    def receive(self, x: Tensor, sender: int) -> Tensor:
        """Returns what a rank sends; x, of its shape and type, may be overwritten."""
        ...

    def abort(self) -> None:
        """Ends what waits for a rank that has gone; what it returns means nothing. Callable from any thread."""

    def close(self) -> None:
        """Ends the connection, and the threads that serve it."""


class Hosts(Protocol):
    """What the processes of all ranks tell each other. All call the same methods in the same order."""

    def minimum(self, value: int) -> int:
        """Returns the least of the ranks' values."""
        ...

    def broadcast(self, value: Any = None) -> Any:
        """Returns the first rank's value on every rank."""
        ...

    def abort(self) -> None:
        """Takes note that a rank has gone. Callable from any thread."""

    def check(self) -> None:
        """Raises EngineError once a rank is known to have gone."""


class OneRank:
    """The collectives of a rank that shares nothing."""

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        return x

    def broadcast(self, x: Tensor, root: int) -> Tensor:
        return x

    def send(self, x: Tensor, to: int) -> None:
        raise ValueError("a rank alone has none to send to")

    def receive(self, x: Tensor, sender: int) -> Tensor:
        raise ValueError("a rank alone has none to receive from")

    def abort(self) -> None:
        pass

    def close(self) -> None:
        pass


class OneHost:
    """What a process alone tells itself."""

    def abort(self) -> None:
        pass

    def check(self) -> None:
        pass

    def minimum(self, value: int) -> int:
        return value

    def broadcast(self, value: Any = None) -> Any:
        return value


class Graphs(Protocol):
    """Holds CUDA graphs, in which calls of collectives are."""

    def clear(self) -> None:
        """Forgets them all."""


@dataclass(frozen=True)
class Ranks:
    """The processes that run one engine, and this one's place among them (vlm.parallel.mapping.Mapping)."""

    rank: int = 0
    size: int = 1
    hosts: Hosts = field(default_factory=OneHost)
    all: Collectives = field(default_factory=OneRank)
    stage: Collectives = field(default_factory=OneRank)  # with those that split the same layers
    pipeline: Collectives = field(default_factory=OneRank)  # with those of the same part of other stages' layers
    # with those that split the same layers of an encoder of texts, where these are others than the stage's
    encoder: Collectives = field(default_factory=OneRank)
    _graphs: list[Graphs] = field(default_factory=list, init=False)

    @property
    def groups(self) -> tuple[Collectives, ...]:
        """Returns all groups of GPUs, in an order that all ranks have."""
        return (self.stage, self.encoder, self.pipeline, self.all)

    def abort(self) -> None:
        """Ends what waits for a rank that has gone; whoever waited finds out by `hosts.check`."""
        for each in (self.hosts, *self.groups):  # the stage's kernels hold up all else
            each.abort()

    def hold(self, graphs: Graphs) -> None:
        """Takes note of graphs that connections do not outlive: NCCL waits for the end of all that it is called in."""
        if self.size > 1:
            self._graphs.append(graphs)

    def close(self) -> None:
        """Ends the connections between GPUs, which a process must not leave to its end, and the graphs before them."""
        for graphs in self._graphs:
            graphs.clear()
        for each in self.groups:
            each.close()


ALONE = Ranks()
