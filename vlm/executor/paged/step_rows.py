"""The rows of a decode step: each sequence's last token, and what is proposed to follow it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vlm.ops.sampling.last_tokens import last_tokens
from vlm.ops.state.drafts import NONE
from vlm.ops.state.sequences import SequenceState


class StepRows(NamedTuple):
    """Tokens of a step, [R] each."""

    slots: Tensor  # int32
    positions: Tensor  # int32
    token_ids: Tensor  # int32
    lengths: Tensor  # int32: positions + 1
    cross_lengths: Tensor | None = None  # int32: of the encoder's output; None without cross-attention
    several: bool = False  # has a sequence more than one row?

    @classmethod
    def last(cls, state: SequenceState, slots: Tensor, cross_lengths: Tensor | None) -> StepRows:
        """Returns the last tokens of these slots' sequences; `cross_lengths` [S]: of all slots."""
        last = last_tokens(state, slots, cross_lengths)
        return cls(slots, last.positions, last.token_ids, last.lengths, last.cross_lengths)

    def with_drafts(self, proposed: Tensor, padding_slot: int, cross_lengths: Tensor | None) -> StepRows:
        """Returns the same followed by the `proposed` tokens [drafts, R], which come after them one by one: (drafts +
        1) R rows. What is none is a row of the padding slot, which sees and changes nobody's cache."""
        is_token = proposed != NONE
        ahead = torch.arange(1, len(proposed) + 1, dtype=torch.int32, device=proposed.device)[:, None]
        slots = torch.where(is_token, self.slots, padding_slot)
        positions, token_ids = torch.where(is_token, self.positions + ahead, 0), torch.where(is_token, proposed, 0)
        own, drafts = (self.slots, self.positions, self.token_ids), (slots, positions, token_ids)
        slots, positions, token_ids = (torch.cat((x, y.flatten())) for x, y in zip(own, drafts, strict=True))
        crosses = None if cross_lengths is None else cross_lengths[slots.long()]
        return StepRows(slots, positions, token_ids, positions + 1, crosses, several=True)
