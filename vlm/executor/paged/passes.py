"""Runs passes of packed rows: on CUDA those that are launch-bound as graphs of their shapes, others as they are."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vlm.executor.graph_pool import GraphPool
from vlm.executor.inputs.packing import HostInputs, PackedChunks, PackedInputs, PackedTexts
from vlm.executor.networks import TextNetwork, parameters_of
from vlm.executor.paged.batches import PagedBatches
from vlm.executor.paged.launch_bound import LaunchBound
from vlm.layers.forward_batch import PromptEmbeds
from vlm.layers.quant.w8a8 import rounds_rows

Pass = Callable[[PackedInputs, PromptEmbeds | None], None]


class PackedPasses:
    """Runs the passes of one network, over the cache of its batches."""

    def __init__(
        self,
        network: TextNetwork | None,
        batches: PagedBatches,
        *,
        least: int,
        graphs: GraphPool | None,
        maximum: Callable[[int], int],
    ):
        """`least`: rows up to which a pass is a graph, whatever it costs; `graphs` None: all are run eagerly;
        `maximum`: the most of a value among all ranks, which capture the same graphs: what they tell each other in a
        pass they tell twice where it is captured."""
        self.graphs, self._batches = graphs, batches
        size, rounds = (0, False) if network is None else (parameters_of(network), rounds_rows(network.modules()))
        self._launch_bound = LaunchBound(maximum(size), least, in_8_bits=bool(maximum(rounds)))

    def run(self, what: tuple, run: Pass, rows: PackedTexts | PackedChunks, prompt_embeds: PromptEmbeds | None) -> None:
        """Runs a pass over rows; `what`: tells its graph from those of other passes of the same shapes."""
        if self.graphs is None or not self._launch_bound.chooses(rows.num_rows):
            run(rows.to_device(self._batches.device), prompt_embeds)
        else:
            inputs = rows.inputs(self._batches.device, self._batches.padding_slot)
            embeds_by_row = self._padded(prompt_embeds, inputs.lengths[0])
            _replay(self.graphs, what, run, inputs=inputs, prompt_embeds=embeds_by_row)

    def _padded(self, prompt_embeds: PromptEmbeds | None, rows: int) -> PromptEmbeds | None:
        """Returns the same with an embedding a row of the batch: the shapes of a graph."""
        if prompt_embeds is None:
            return None
        embeds, index = prompt_embeds
        # rows of padding write keys and values, which masked tiles read: they have to be numbers
        result = torch.zeros(rows, embeds.shape[1], dtype=embeds.dtype, device=self._batches.device)
        torch.index_select(embeds, 0, index, out=result[: len(index)])
        return PromptEmbeds(result, torch.arange(rows, dtype=torch.int32, device=self._batches.device))


def _replay(
    graphs: GraphPool, what: tuple, run: Pass, *, inputs: HostInputs, prompt_embeds: PromptEmbeds | None
) -> None:
    """Runs a pass as the graph of its shapes, which takes tensors one after the other."""

    def run_on(whole: Tensor, *embeds: Tensor) -> None:
        run(inputs.parts_of(whole), PromptEmbeds(*embeds) if embeds else None)

    embeds = prompt_embeds or ()
    graphs.replay((*what, *inputs.lengths, *map(len, embeds)), run_on, inputs.whole, *embeds)
