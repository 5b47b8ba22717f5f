"""Which passes are CUDA graphs: those whose kernels a GPU runs faster than the host launches them."""

from __future__ import annotations

from vlm.executor.graph_pool import GraphShapes
from vlm.executor.inputs.packing import graph_rows

# rows · parameters of a pass that takes a GPU a millisecond, the host some more to launch its kernels
SHORT = 4 * 10**11
# of one that takes both about as long, so that what else the host does holds up the GPU
LONG = 10 * SHORT
MOST_LONG = 64  # sizes of long passes that are graphs


class LaunchBound:
    """The passes of one network, by their rows: short ones are graphs, long ones where their size comes again."""

    def __init__(self, parameters: int, least: int, *, in_8_bits: bool = False):
        """`parameters`: that the network has; passes of `least` rows are short, whatever it is. Products of which both
        sides are of 8 bits take a GPU half as long, and the host some more kernels."""
        size = max(1, parameters) / (2 if in_8_bits else 1)
        self._short, self._long = max(least, int(SHORT / size)), int(LONG / size)
        self._sizes = GraphShapes(after=1, most=MOST_LONG)

    def chooses(self, rows: int) -> bool:
        """Says whether a pass of so many rows that comes now is a graph."""
        return rows <= self._short or (rows <= self._long and self._sizes.chooses(graph_rows(rows)))
