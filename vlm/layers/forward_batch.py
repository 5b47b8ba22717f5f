"""What one pass through a network is about, given to every module of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from torch import Tensor

from vlm.layers.metadata.base import AttentionMetadata


class PromptEmbeds(NamedTuple):
    """Embeddings that a batch brings for its ids beyond the vocabulary: images' features, tuned prompts."""

    rows: Tensor  # [n, hidden]
    index: Tensor  # [R] int: which of them each row of the batch is, any where its id is a token's


@dataclass
class HiddenStateRecorder:
    """Records what an encoder computes on the way to its output, where someone asks for it."""

    keep_attentions: bool = False
    hidden_states: list[Tensor] = field(default_factory=list)  # [R, hidden]: what goes into each block
    attentions: list[list[Tensor]] = field(default_factory=list)  # a layer: of each sequence [H, T, T] float32


@dataclass(frozen=True)
class ForwardBatch:
    """The R rows of a pass: tokens of one or more sequences, without padding wherever the layout allows it.

    A network gets it beside the token ids and hands it on to every layer. Embeddings read `prompt_embeds`, whatever
    knows positions `positions`, attention layers call `attention`, and each Linear finds its rows' adapters.
    """

    positions: Tensor  # [R] int; [axes, R] in models whose positions have several axes
    attention: AttentionMetadata
    prompt_embeds: PromptEmbeds | None = None
    adapter_ids: Tensor | None = (
        None  # [R] int32: slots of banks, NO_ADAPTER where a row has none; None: no row has one
    )
    recorder: HiddenStateRecorder | None = None
    rows_to_keep: Tensor | None = None  # [n] int64: whose hidden rows are wanted of a decoder; None: all

    def keep_rows(self, x: Tensor) -> Tensor:
        """Returns the rows to keep of x [R, …]."""
        return x if self.rows_to_keep is None else x[self.rows_to_keep]

    @property
    def narrowed(self) -> ForwardBatch:
        """Returns the same of the rows to keep alone, for what does not attend."""
        return self if self.rows_to_keep is None else self._kept_alone

    @cached_property
    def _kept_alone(self) -> ForwardBatch:
        # never the batch itself, whose tensors a circle would hold until it is collected
        ids = None if self.adapter_ids is None else self.keep_rows(self.adapter_ids)
        return replace(self, positions=self.positions[..., self.rows_to_keep], adapter_ids=ids, rows_to_keep=None)

    def rows(self, start: int, end: int) -> ForwardBatch:
        """Returns the same of some rows alone, for what does not attend: a head."""
        ids = self.adapter_ids
        return replace(
            self, positions=self.positions[..., start:end], adapter_ids=None if ids is None else ids[start:end]
        )

    def sequences(self, start: int, end: int) -> ForwardBatch:
        """Returns the same of some rows of a decode step alone."""
        if self.prompt_embeds is None:
            embeds = None
        else:
            embeds = self.prompt_embeds._replace(index=self.prompt_embeds.index[start:end])
        attention = self.attention.sequences(start, end)
        return replace(self.rows(start, end), attention=attention, prompt_embeds=embeds)

    def record(self, x: Tensor, delta: Tensor | None) -> None:
        """Records what goes into a block: the stream and what is still to be added to it."""
        if self.recorder is not None:
            self.recorder.hidden_states.append(x if delta is None else x + delta)
