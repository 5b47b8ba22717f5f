"""What is kept of each sequence to draft by."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MAX_NGRAM = 5  # tokens of a match, beyond which a longer one is no better
NONE = -1  # no proposal, and no token


@dataclass(frozen=True)
class DraftState:
    """What is kept of each slot to draft by. `S` slots."""

    sources: Tensor  # [S, n] int32: tokens that the encoder read
    source_lengths: Tensor  # [S] int32
    limits: Tensor  # [S] int32: proposals a step, 0: none
    num_drafted: Tensor  # [S] int32: tokens proposed so far,
    num_accepted: Tensor  # [S] int32: … and those of them that were chosen

    @classmethod
    def empty(cls, size: int, max_source_len: int, device: torch.device) -> DraftState:
        ints = lambda *dims: torch.zeros(size, *dims, dtype=torch.int32, device=device)  # noqa: E731
        return cls(ints(max_source_len), ints(), ints(), ints(), ints())
