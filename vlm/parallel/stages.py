"""How the stages of a pipeline, each of which runs some layers of a network, hand rows on."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from vlm.parallel.collectives import Collectives, OneRank
from vlm.parallel.mapping import Shard


@dataclass(frozen=True)
class Stages:
    """The pipeline as one rank sees it: alone it is the first and the last stage, and nothing is sent."""

    place: Shard = field(default_factory=Shard)  # of its stage
    ranks: Collectives = field(default_factory=OneRank)  # a rank of each stage, in their order

    @property
    def is_first(self) -> bool:
        return self.place.rank == 0

    @property
    def is_last(self) -> bool:
        return self.place.rank == self.place.size - 1

    def received(self, x: Tensor) -> Tensor:
        """Returns what the stage before has handed on, which has the shape and type of x: on the first stage x."""
        if self.is_first:
            return x
        empty = torch.empty_like(x, memory_format=torch.contiguous_format)
        return self.ranks.receive(empty, self.place.rank - 1)

    def hand_on(self, x: Tensor, delta: Tensor | None = None) -> None:
        """Sends x, and `delta` added to it, to the next stage; the last one keeps them."""
        if not self.is_last:
            self.ranks.send(x if delta is None else x + delta, self.place.rank + 1)

    def from_last(self, x: Tensor) -> Tensor:
        """Returns the last stage's x on every stage; those of the others have its shape and type."""
        return self.from_stage(self.place.size - 1, x)

    def from_stage(self, stage: int, x: Tensor) -> Tensor:
        """Returns a stage's x on every stage; those of the others have its shape and type."""
        return self.ranks.broadcast(x, stage)

    def shares(self, total: int) -> list[int]:
        """Returns how many of `total` layers each stage has."""
        return [Shard(stage, self.place.size).share(total) for stage in range(self.place.size)]
