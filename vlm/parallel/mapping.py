"""Which part of a model a process runs: its rank among those that split the layers, and each layer's tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vlm.artifacts.native.roles import REPLICATED
from vlm.errors import ConfigError


@dataclass(frozen=True)
class Shard:
    """One rank's place among the `size` ranks that split a dimension."""

    rank: int = 0
    size: int = 1

    def share(self, total: int, units: int | None = None) -> int:
        """Returns how many of `total` rows, columns or heads a rank has: see `place`."""
        place = self.place(total, units)
        return place.stop - place.start

    def place(self, total: int, units: int | None = None) -> slice:
        """Returns which of `total` rows, columns or heads a rank has.

        They are `units` pieces that stay whole (the rows of a head); None: each is one by itself. The first ranks have
        a piece more where they do not divide. Fewer `units` than ranks are held by several neighbouring ranks each.
        Raises ConfigError where a rank would have nothing, or ranks would differ in what they share.
        """
        pieces = total if units is None else units
        width, (each, more) = total // pieces, divmod(pieces, self.size)
        if each:
            first, count = self.rank * each + min(self.rank, more), each + (self.rank < more)
        elif units is None or self.size % pieces:
            parts = "columns" if units is None else "heads or groups"
            raise ConfigError(
                f"a layer whose {parts} are {pieces} cannot be split among {self.size} ranks; run the model on fewer"
                f" GPUs: tp_size {pieces} at most.",
                settings=("tp_size",),
            )
        else:
            first, count = self.rank * pieces // self.size, 1
        return slice(first * width, (first + count) * width)


@dataclass(frozen=True)
class Mapping:
    """Places process `rank` on a grid of `pp` pipeline stages, of `tp` ranks each that split every tensor.

    `encoder_tp` consecutive ranks of a stage split those of an encoder of texts, and others of them have it, too; None:
    all of the stage do.
    """

    tp: int = 1
    pp: int = 1
    rank: int = 0
    encoder_tp: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.tp * self.pp:
            raise ValueError(f"rank {self.rank} does not exist: there are {self.tp * self.pp}")

    @property
    def size(self) -> int:
        """Returns how many processes there are."""
        return self.tp * self.pp

    @property
    def shard(self) -> Shard:
        """Returns the rank's place in its stage."""
        return Shard(self.rank % self.tp, self.tp)

    @property
    def stage(self) -> Shard:
        """Returns the place of the rank's stage in the pipeline."""
        return Shard(self.rank // self.tp, self.pp)

    @property
    def stage_ranks(self) -> range:
        """Returns the ranks of this one's stage."""
        first = self.rank - self.rank % self.tp
        return range(first, first + self.tp)

    @property
    def pipeline_ranks(self) -> range:
        """Returns the ranks that have this one's place in each stage."""
        return range(self.rank % self.tp, self.size, self.tp)

    @property
    def groups(self) -> dict[str, range]:
        """Returns the ranks that this one tells something, by the field of vlm.parallel.collectives.Ranks."""
        groups = {"all": range(self.size), "stage": self.stage_ranks, "pipeline": self.pipeline_ranks}
        if self.encoder_tp is None:
            return groups
        first = self.rank - self.shard.rank % self.encoder_tp
        return groups | {"encoder": range(first, first + self.encoder_tp)}

    def of_role(self, role: str) -> Mapping:
        """Returns the rank's place among those that split a role's network, its `rank` there being the number of the
        part of the weights that it loads."""
        if role in REPLICATED:
            return Mapping()
        if role != "encoder" or self.encoder_tp is None:
            return replace(self, encoder_tp=None)
        own = self.encoder_tp
        return Mapping(own, self.pp, self.stage.rank * own + self.shard.rank % own)

    def layers(self, count: int) -> range:
        """Returns which of a network's layers the rank's stage runs. Raises ConfigError where one would have none."""
        if count < self.pp:
            raise ConfigError(
                f"a network of {count} layer{'s' * (count > 1)} cannot be cut into {self.pp} pipeline stages; build"
                f" with pp_size {count} or less.",
                settings=("pp_size",),
            )
        place = self.stage.place(count)
        return range(place.start, place.stop)
