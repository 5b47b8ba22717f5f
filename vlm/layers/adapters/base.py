"""What a Linear asks of adapters: small changes of a network, of which each row of a batch names one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import nn


class Adapters(Protocol):
    """Makes the banks of one kind of adapters, for as many and as large ones as it was made for. One object serves all
    layers."""

    def bank(self, in_features: int, part_sizes: Mapping[str, int]) -> nn.Module | None:
        """Returns what a Linear of these sizes is to hold, or None where adapters leave it as it is.

        The bank has the tensors of all adapters, each in a slot. Its forward(x [..., in], y [..., out], adapter_ids [R]
        int32, their slots) returns y, the Linear's own result, changed for each row by its adapter; NO_ADAPTER changes
        nothing. It may change y in place.
        """
        ...
