"""What slots hold of penalties and of what is forbidden: see `penalize` and `logits_processors`
in vlm.ops.sampling."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PenaltyState:
    """Per slot; `S` slots."""

    repetition: Tensor  # [S] float32, 1: off
    presence: Tensor  # [S] float32, 0: off
    frequency: Tensor  # [S] float32, 0: off
    min_lengths: Tensor  # [S] int32: no end or stop token before so many tokens are there
    ngrams: Tensor  # [S] int32: n-grams of this size must not repeat, 0: off
    input_repetition: Tensor  # [S] float32: `repetition` over the input's tokens, 1: off
    decay_starts: Tensor  # [S] int32: tokens after which ends get likelier,
    decay_factors: Tensor  # [S] float64: by this factor each, 1: off
    clean: Tensor  # [S] bool: NaN and infinite values become finite
    normalize: Tensor  # [S] bool: probabilities add up to 1 again

    @classmethod
    def empty(cls, size: int, device: torch.device) -> PenaltyState:
        ints = lambda: torch.zeros(size, dtype=torch.int32, device=device)  # noqa: E731
        floats = lambda: torch.zeros(size, device=device)  # noqa: E731
        flags = lambda: torch.zeros(size, dtype=torch.bool, device=device)  # noqa: E731
        return cls(
            floats() + 1, floats(), floats(), ints(), ints(), floats() + 1, ints(), floats().double() + 1, flags(),
            flags(),
        )  # fmt: skip
