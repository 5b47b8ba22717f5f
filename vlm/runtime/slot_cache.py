"""Linear caches, a slot a sequence: what compiled graphs read and update in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from vlm.compile.graph_io import BATCH, GraphIO


@dataclass(frozen=True)
class SlotCache:
    """The caches by their names as inputs of the decoder's graph. [slots, H, T, D]"""

    tensors: Mapping[str, Tensor]
    in_place: Mapping[str, str]  # output -> the input whose memory it is

    @classmethod
    def allocate(cls, decoder: GraphIO, slots: int, device: torch.device) -> SlotCache:
        """Zeros: what lies beyond a sequence's length is multiplied by 0, and must be finite."""
        ports = [port for port in decoder.inputs if port.name.startswith(("self_", "cross_k", "cross_v"))]
        shape = {BATCH: slots}
        tensors = {port.name: torch.zeros(port.sized(**shape), dtype=port.dtype, device=device) for port in ports}
        return cls(tensors, decoder.in_place)

    def inputs(self, slots: slice) -> dict[str, Tensor]:
        """Of a run of slots, no copies."""
        return {name: tensor[slots] for name, tensor in self.tensors.items()}

    def outputs(self, slots: slice) -> dict[str, Tensor]:
        """The same memory, as the graph's results."""
        return {output: self.tensors[name][slots] for output, name in self.in_place.items()}

    def write(self, name: str, slot: int, rows: Tensor) -> None:
        """rows [H, n, D] -> the first n of a slot"""
        self.tensors[name][slot, :, : rows.shape[1]] = rows

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Rows of one slot's self-attention to another one."""
        for name in self.in_place.values():
            held = self.tensors[name]
            held[target, :, start:end] = held[source, :, start:end]

    def follow(self, slots: Tensor, parents: Tensor) -> None:
        """Every beam's slot takes over what its parent's holds. slots, parents [G, W], see `beam_search.step`"""
        slots = slots.long()
        sources, targets = slots.gather(1, parents).flatten(), slots.flatten()
        if not slots.is_cuda:  # where it costs no waiting
            moved = (sources != targets).nonzero()[:, 0]
            sources, targets = sources[moved], targets[moved]
        for name in self.in_place.values():
            held = self.tensors[name]
            held.index_copy_(0, targets, held.index_select(0, sources))
