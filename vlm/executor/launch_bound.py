"""Which passes are CUDA graphs: those whose kernels a GPU runs faster than the host launches them."""

from __future__ import annotations

from dataclasses import dataclass

from vlm.executor.packing import graph_rows

# rows · parameters of a pass that takes a GPU a millisecond, the host some more to launch its kernels
SHORT = 4 * 10**11
# of one that takes both about as long, so that what else the host does holds up the GPU
LONG = 10 * SHORT
LEAST_FULL = 31 / 32  # of a graph's rows that are a long pass's own: the others cost as much


@dataclass(frozen=True)
class LaunchBound:
    """The passes of one network, by their rows."""

    short: int  # rows up to which a pass is a graph, however many rows are added for its size
    long: int  # rows up to which it is one where hardly any are

    @classmethod
    def of(cls, parameters: int, least: int) -> LaunchBound:
        """Returns the bounds of a network of so many parameters; passes of `least` rows are graphs, whatever it is."""
        return cls(max(least, SHORT // max(1, parameters)), LONG // max(1, parameters))

    def __contains__(self, rows: int) -> bool:
        """Says whether a pass of so many rows is a graph."""
        return rows <= self.short or (rows <= self.long and rows >= LEAST_FULL * graph_rows(rows))
