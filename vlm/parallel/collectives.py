"""What ranks that split the layers of a network tell each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor


class Collectives(Protocol):
    """All ranks call the same methods in the same order, with tensors of the same shape and type."""

    def all_reduce(self, x: Tensor) -> Tensor:
        """Returns the sum of the ranks' tensors, the same bits on every rank; x may be overwritten."""
        ...

    def all_gather(self, x: Tensor) -> Tensor:
        """Returns the ranks' columns [R, C] side by side, in the order of the ranks: [R, ranks · C]."""
        ...

    def minimum(self, value: int) -> int:
        """Returns the least of the ranks' values, on the host."""
        ...

    def broadcast(self, value: Any = None) -> Any:
        """Returns the first rank's value on every rank, on the host."""
        ...


class OneRank:
    """The collectives of a network that is not split."""

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        return x

    def minimum(self, value: int) -> int:
        return value

    def broadcast(self, value: Any = None) -> Any:
        return value


@dataclass(frozen=True)
class Ranks:
    """The processes that run one engine, and this one's place among them."""

    rank: int = 0
    size: int = 1
    collectives: Collectives = field(default_factory=OneRank)


ALONE = Ranks()
