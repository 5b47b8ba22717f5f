"""Makes the ForwardBatches of rows over a paged cache: where each of them writes, and what it sees."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from vlm.config import ModelConfig
from vlm.executor.kv_cache import absorbing_pays
from vlm.executor.state.batch_state import BatchState
from vlm.layers.forward_batch import ForwardBatch, PromptEmbeds
from vlm.layers.metadata.paged import PagedMetadata
from vlm.ops.layouts.paged_kv import KVCache


class PagedBatches:
    """Makes the batches of the sequences of one batch state, over one cache."""

    def __init__(self, cache: KVCache, state: BatchState, config: ModelConfig):
        """`config`: the decoder's."""
        self.cache, self.state, self._config = cache, state, config
        self.device, self.padding_slot = cache.blocks.device, state.padding_slot

    def batch(
        self,
        slots: Tensor,
        positions: Tensor,
        *,
        adapted: bool,
        axes: Tensor | None = None,
        tiles: Tensor | None = None,
        prompt_embeds: PromptEmbeds | None = None,
    ) -> ForwardBatch:
        """Returns the rows at these positions of these slots' sequences, [R] int32 each; `adapted`: some of them have
        adapters; `axes` [axes, R]: positions where they have several axes."""
        crosses = self.state.cross_lengths[slots.long()] if self._config.cross_attention else None
        attention = self.attention(slots, positions, self_lengths=positions + 1, cross_lengths=crosses, tiles=tiles)
        ids = self.adapter_ids(slots, adapted=adapted)
        return ForwardBatch(positions if axes is None else axes, attention, prompt_embeds, ids)

    def attention(self, slots: Tensor, positions: Tensor, **rows: Any) -> PagedMetadata:
        """Returns where rows see what they see; `rows`: the other fields."""
        state = self.state
        tables = {"self_tables": state.self_tables, "cross_tables": state.cross_tables}
        return PagedMetadata(cache=self.cache, slots=slots, places=positions, **tables, **rows)

    def adapter_ids(self, slots: Tensor, *, adapted: bool) -> Tensor | None:
        return self.state.adapter_ids[slots.long()] if adapted else None

    def absorbing_pays(self, rows: int) -> bool:
        """Says whether a step over so many rows of encoders is to attend to the rows themselves, where they are kept
        and no adapter changes their keys and values."""
        hidden = self.cache.hidden
        return hidden is not None and absorbing_pays(rows, hidden.shape[2], self._config)
