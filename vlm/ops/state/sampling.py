"""How the next tokens of slots are drawn: see vlm.ops.sampling.sample, vlm.ops.sampling.entropy_filters."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from vlm.ops.state.sequences import SequenceState

LEAST_TEMPERATURE = 1e-30  # by less than that logits are divided to infinity, where all are alike


@dataclass(frozen=True)
class SamplingState:
    """Holds the sampling settings of each slot, or of each row of a batch. A temperature of 0 is greedy."""

    temperature: Tensor  # [S] float32
    top_k: Tensor  # [S] int32, 0: off
    top_p: Tensor  # [S] float32
    min_p: Tensor  # [S] float32
    seeds: Tensor  # [S] int64
    # the factual nucleus of Lee et al. (arXiv:2206.04624)
    top_p_decay: Tensor  # [S] float32: top_p shrinks by it with each token
    top_p_min: Tensor  # [S] float32: to no less than this
    top_p_reset_id: Tensor  # [S] int32: and is whole again after this token, -1: never
    decay_steps: Tensor  # [S] int32: tokens since then
    # vlm.ops.sampling.entropy_filters
    top_h: Tensor  # [S] float32, 0: off
    typical_p: Tensor  # [S] float32, 1: off
    epsilon_cutoff: Tensor  # [S] float32, 0: off
    eta_cutoff: Tensor  # [S] float32, 0: off

    @classmethod
    def empty(cls, size: int, device: torch.device) -> SamplingState:
        ints = lambda: torch.zeros(size, dtype=torch.int32, device=device)  # noqa: E731
        floats = lambda: torch.zeros(size, device=device)  # noqa: E731
        seeds = torch.zeros(size, dtype=torch.int64, device=device)
        return cls(
            floats(), ints(), floats() + 1, floats(), seeds, floats() + 1, floats(), ints() - 1, ints(), floats(),
            floats() + 1, floats(), floats(),
        )  # fmt: skip

    def rows(self, slots: Tensor) -> SamplingState:
        """Returns the settings of the rows `slots` [R] int64."""
        return SamplingState(**{field.name: getattr(self, field.name)[slots] for field in fields(self)})

    @property
    def goes_by_entropy(self) -> Tensor:
        """Returns which slots draw by filters of `vlm.ops.sampling.entropy_filters`, [S] bool."""
        filters = (self.top_h > 0) | (self.typical_p < 1) | (self.epsilon_cutoff > 0) | (self.eta_cutoff > 0)
        return filters & (self.temperature > 0)

    @property
    def nucleus(self) -> Tensor:
        """Returns top_p as it is now, [S]."""
        shrunk = torch.maximum(self.top_p * self.top_p_decay**self.decay_steps, self.top_p_min)
        return torch.where((self.decay_steps == 0) | (self.top_p_decay == 1.0), self.top_p, shrunk)

    def after(self, slots: Tensor, state: SequenceState) -> None:
        """Counts the token that each of the rows `slots` [R] int64 has just got."""
        last = state.tokens[slots, (state.lengths[slots] - 1).long()]
        self.decay_steps[slots] = torch.where(last == self.top_p_reset_id[slots], 0, self.decay_steps[slots] + 1)
