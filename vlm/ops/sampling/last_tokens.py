"""What a decode step begins with: each row's last token, its place, and how much it sees."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from vlm.ops.state.sequences import SequenceState


class LastTokens(NamedTuple):
    """Of the sequences in so many slots, [R] int32 each."""

    token_ids: Tensor
    positions: Tensor
    lengths: Tensor  # positions + 1
    cross_lengths: Tensor | None  # of the encoder's output; None without cross-attention


def reference(state: SequenceState, slots: Tensor, cross_lengths: Tensor | None) -> LastTokens:
    s = slots.long()
    lengths = state.lengths[s]
    token_ids = state.tokens[s, lengths.long() - 1]
    return LastTokens(token_ids, lengths - 1, lengths, None if cross_lengths is None else cross_lengths[s])


def last_tokens(state: SequenceState, slots: Tensor, cross_lengths: Tensor | None) -> LastTokens:
    """Returns the last tokens of the sequences in `slots` [R] int32; `cross_lengths` [S] int32: of all slots."""
    if slots.is_cuda:
        from vlm.ops.kernels.last_tokens import last_tokens as kernel

        return LastTokens(*kernel(state, slots, cross_lengths))
    return reference(state, slots, cross_lengths)
