"""The rows of a decode step: each sequence's last token, and what is proposed to follow it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vlm.ops.prompt_lookup import NONE
from vlm.ops.sequence_state import SequenceState


class StepRows(NamedTuple):
    """Tokens of a step, [R] each."""

    slots: Tensor  # int32
    positions: Tensor  # int32
    token_ids: Tensor  # int32
    several: bool = False  # has a sequence more than one row?

    @classmethod
    def last(cls, state: SequenceState, slots: Tensor) -> StepRows:
        """Returns the last tokens of these slots' sequences."""
        s = slots.long()
        positions = state.lengths[s] - 1
        return cls(slots, positions, state.tokens[s, positions.long()])

    def with_drafts(self, proposed: Tensor, padding_slot: int) -> StepRows:
        """Returns the same followed by the `proposed` tokens [drafts, R], which come after them one by one: (drafts +
        1) R rows. What is none is a row of the padding slot, which sees and changes nobody's cache."""
        is_token = proposed != NONE
        ahead = torch.arange(1, len(proposed) + 1, dtype=torch.int32, device=proposed.device)[:, None]
        slots = torch.where(is_token, self.slots, padding_slot)
        positions, token_ids = torch.where(is_token, self.positions + ahead, 0), torch.where(is_token, proposed, 0)
        own = (self.slots, self.positions, self.token_ids)
        drafts = (slots, positions, token_ids)
        return StepRows(*(torch.cat((x, y.flatten())) for x, y in zip(own, drafts, strict=True)), several=True)
