"""Linear caches, a slot a sequence: what compiled graphs read and update in place."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vlm.backends.graphs.io import BATCH, GraphIO, Port

# rows of a cache that may grow, at first and more at a time; all rows are looked through in each step
FIRST_ROWS = STEP = 32


class SlotCache:
    """The caches by their names as inputs of the decoder's graph, [slots, H, T, D].

    T is what the graph says, or where it leaves that open, what has been needed so far. limits: the most, by the names
    of such dimensions
    """

    def __init__(self, decoder: GraphIO, slots: int, limits: Mapping[str, int], device: torch.device):
        self.in_place, self.limits, self.device = decoder.in_place, limits, device
        self._ports = [port for port in decoder.inputs if port.name.startswith(("self_", "cross_k", "cross_v"))]
        self._first_sizes = {BATCH: slots} | {name: min(FIRST_ROWS, limit) for name, limit in limits.items()}
        self._sizes = dict(self._first_sizes)
        self.tensors = {port.name: self._zeros(port) for port in self._ports}

    def _zeros(self, port: Port) -> Tensor:
        """Returns zeros for a port: what lies beyond a sequence's length is multiplied by 0, and must be finite."""
        return torch.zeros(port.sized(**self._sizes), dtype=port.dtype, device=self.device)

    def reserve(self, dimension: str, rows: int) -> bool:
        """Sees to it that so many rows fit; says whether the tensors have been moved."""
        size = self._sizes[dimension]
        if rows <= size:
            return False
        grown = -(-max(rows, size * 5 // 4) // STEP) * STEP
        self._sizes[dimension] = min(grown, self.limits[dimension])
        ports = [port for port in self._ports if dimension in port.shape]
        for port in ports:
            old, self.tensors[port.name] = self.tensors[port.name], self._zeros(port)
            self.tensors[port.name][:, :, :size] = old
        return bool(ports)

    def reset(self) -> bool:
        """Gives back all growth, one that failed half way included; says whether the tensors have been moved."""
        if self._sizes == self._first_sizes:
            return False
        self._sizes, self.tensors = dict(self._first_sizes), {}  # before more is taken
        self.tensors = {port.name: self._zeros(port) for port in self._ports}
        return True

    def inputs(self, slots: slice) -> dict[str, Tensor]:
        """Returns the cache's tensors of a run of slots, no copies."""
        return {name: tensor[slots] for name, tensor in self.tensors.items()}

    def outputs(self, slots: slice) -> dict[str, Tensor]:
        """Returns the same memory, as the graph's results."""
        return {output: self.tensors[name][slots] for output, name in self.in_place.items()}

    def write(self, name: str, slot: int, rows: Tensor) -> None:
        """Writes rows [H, n, D] -> the first n of a slot"""
        self.tensors[name][slot, :, : rows.shape[1]] = rows

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Copies rows of one slot's self-attention to another one."""
        for name in self.in_place.values():
            tensor = self.tensors[name]
            tensor[target, :, start:end] = tensor[source, :, start:end]

    def reorder_cache(self, slots: Tensor, parents: Tensor) -> None:
        """Lets every beam's slot take over what its parent's holds. slots, parents [G, W], see `beam_search.step`"""
        slots = slots.long()
        sources, targets = slots.gather(1, parents).flatten(), slots.flatten()
        if not slots.is_cuda:  # where it costs no waiting
            changes = (sources != targets).nonzero()[:, 0]
            sources, targets = sources[changes], targets[changes]
        for name in self.in_place.values():
            tensor = self.tensors[name]
            tensor.index_copy_(0, targets, tensor.index_select(0, sources))
