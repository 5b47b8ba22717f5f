"""Which part of a model a process runs: its rank among those that split the layers, and each layer's tensors."""

from __future__ import annotations

from dataclasses import dataclass

from vlm.errors import ConfigError


@dataclass(frozen=True)
class Shard:
    """One rank's place among the `size` ranks that split a dimension."""

    rank: int = 0
    size: int = 1

    def share(self, total: int) -> int:
        """Returns how many of `total` rows, columns or heads a rank has. ConfigError where ranks would differ."""
        if total % self.size:
            raise ConfigError(f"{total} cannot be split among {self.size} ranks; run the model on fewer GPUs.")
        return total // self.size


@dataclass(frozen=True)
class Mapping:
    """Places process `rank` on a grid of `pp` pipeline stages, of `tp` ranks each that split every tensor."""

    tp: int = 1
    pp: int = 1
    rank: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.tp * self.pp:
            raise ValueError(f"rank {self.rank} does not exist: there are {self.tp * self.pp}")

    @property
    def shard(self) -> Shard:
        """Returns the rank's place in its stage."""
        return Shard(self.rank % self.tp, self.tp)
