"""The blocks of a network, of which each stage of a pipeline runs some."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from vlm.layers.context import ModelContext
from vlm.layers.forward_batch import ForwardBatch


class Blocks(nn.ModuleList):
    """Holds the blocks of this rank's stage under their numbers in the whole network, as its tensors are named.

    A block maps (x, delta, batch, …) -> (x, delta): the residual stream, and what is still to be added to it or None.
    """

    def __init__(self, num_layers: int, block: Callable[[int], nn.Module], *, context: ModelContext):
        """`block` makes the block of a number."""
        super().__init__()
        self.stages = context.stages
        for layer in context.mapping.layers(num_layers):
            self.add_module(str(layer), block(layer))

    def forward(self, x: Tensor, batch: ForwardBatch, *more: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Runs the stage's blocks on rows x [R, hidden], which are the embeddings on the first stage alone, and hands
        the result on; of the last stage (x, delta) is that of the whole network. Each block takes `more`, too."""
        x, delta = self.stages.received(x), None
        for block in self:
            x, delta = block(x, delta, batch, *more)
        self.stages.hand_on(x if delta is None else x + delta)  # their sum alone: half as much, of x's own type
        return x, delta
