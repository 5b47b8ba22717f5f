"""What the layers of a network have in common and its configuration does not say."""

from __future__ import annotations

from dataclasses import dataclass, field

from vlm.layers.adapters.base import AdapterRoom
from vlm.layers.quant.quantization import Quantization
from vlm.parallel.collectives import Collectives, OneRank
from vlm.parallel.mapping import Mapping
from vlm.parallel.stages import Stages


@dataclass(frozen=True)
class ModelContext:
    """Says how a network is made: once given to its constructor, it reaches every layer.

    The default is a whole network in one process, with weights as they are.
    """

    mapping: Mapping = field(default_factory=Mapping)  # which part of the network this process runs
    quantization: Quantization = field(default_factory=Quantization)  # how weights are kept, once it is made
    adapters: AdapterRoom | None = None  # what changes results row by row
    collectives: Collectives = field(default_factory=OneRank)  # with the processes that split the same layers
    pipeline: Collectives = field(default_factory=OneRank)  # with those that run the same part of other layers

    @property
    def stages(self) -> Stages:
        """Returns the pipeline that the network's layers are cut into."""
        return Stages(self.mapping.stage, self.pipeline)
