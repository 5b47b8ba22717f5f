"""The blocks of a network, of which each stage of a pipeline runs some."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from vlm.layers.context import ModelContext
from vlm.layers.forward_batch import ForwardBatch


class Blocks(nn.ModuleList):
    """Holds the blocks of this rank's stage under their numbers in the whole network, as its tensors are named.

    A block maps (x, delta, batch, …) -> (x, delta): the residual stream, and what is still to be added to it or None.
    All but the last one need all rows: later rows attend to them.
    """

    def __init__(
        self, num_layers: int, block: Callable[[int], nn.Module], *, context: ModelContext, keeps_rows: bool = False
    ):
        """`block` makes the block of a number; `keeps_rows`: it computes a batch's rows to keep alone behind its
        attention."""
        super().__init__()
        self.keeps_rows = keeps_rows
        self.stages, layers = context.stages, context.mapping.layers(num_layers)
        self.counts = self.stages.shares(num_layers)  # of each stage's blocks
        for layer in layers:
            self.add_module(str(layer), block(layer))

    def forward(self, x: Tensor, batch: ForwardBatch, *more: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Runs the stage's blocks on rows x [R, hidden], which are the embeddings on the first stage alone, and hands
        the result on; returns the batch's rows to keep, which on the last stage are those of the whole network. Each
        block takes `more`, too."""
        narrows = self.keeps_rows and self.stages.is_last
        *before, last = self
        x, delta, whole = self.stages.received(x), None, replace(batch, rows_to_keep=None)
        for block in before:
            x, delta = block(x, delta, whole, *more)
        x, delta = last(x, delta, batch if narrows else whole, *more)
        self.stages.hand_on(x, delta)  # as their sum: half as much, of x's own type
        if not narrows:
            x, delta = batch.keep_rows(x), None if delta is None else batch.keep_rows(delta)
        if batch.recorder is not None and len(self.counts) > 1:
            batch.recorder.hidden_states = self._of_all_stages(batch.recorder.hidden_states)
        return x, delta

    def _of_all_stages(self, states: list[Tensor]) -> list[Tensor]:
        """Returns what goes into each block of the network, of which `states` go into those of this stage."""
        own = iter(states)
        return [
            self.stages.from_stage(stage, next(own) if stage == self.stages.place.rank else torch.empty_like(states[0]))
            for stage, count in enumerate(self.counts)
            for _ in range(count)
        ]
