"""What a beam search keeps of its searches, on the device, which rows of a step are their beams, and what these score
continuations by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

NONE = -1.0e9  # the score of what does not exist; finite, as in the original


class EarlyStopping(IntEnum):
    """Says when a group whose hypotheses are complete ends, as `early_stopping` has it."""

    HEURISTIC = 0  # False: once no running beam is likely to beat a hypothesis
    WHEN_FULL = 1  # True: at once
    NEVER = 2  # "never": once no running beam can beat a hypothesis


@dataclass(frozen=True)
class BeamState:
    """Per slot; `S` slots. What belongs to a whole group lies at its first slot."""

    scores: Tensor  # [S] float32: sum of log-probabilities of the running beam
    hypotheses: Tensor  # [S, max_seq_len] int32: an ended sequence, prompt included
    hypothesis_logprobs: Tensor  # [S, max_seq_len] float32
    hypothesis_lengths: Tensor  # [S] int32
    hypothesis_scores: Tensor  # [S] float32, NONE while there is none
    ended: Tensor  # [S] bool: there is one
    can_improve: Tensor  # [S] bool, of a group: may a running beam still beat a hypothesis?
    length_penalty: Tensor  # [S] float32, of a group
    early_stopping: Tensor  # [S] int32, of a group
    diversity: Tensor  # [S] float32, of a group
    spare_blocks: Tensor  # [S] int32: where a copy of another beam's last block goes

    @classmethod
    def empty(cls, size: int, max_seq_len: int, device: torch.device) -> BeamState:
        ints = lambda *dims: torch.zeros(size, *dims, dtype=torch.int32, device=device)  # noqa: E731
        floats = lambda *dims: torch.zeros(size, *dims, device=device)  # noqa: E731
        flags = lambda: torch.zeros(size, dtype=torch.bool, device=device)  # noqa: E731
        return cls(
            floats(), ints(max_seq_len), floats(max_seq_len), ints(), floats() + NONE, flags(), flags(),
            floats(), ints(), floats(), ints(),
        )  # fmt: skip


@dataclass(frozen=True)
class Groups:
    """`G` groups of at most `W` beams in a batch of `R` rows. A group's result depends on neither `W` nor `most`."""

    slots: Tensor  # [G, W] int32; the padding slot where a group is narrower, or is none
    rows: Tensor  # [G, W] int32: each beam's row of the logits
    padding_slot: int
    most: int  # candidates of the widest group, or more

    @property
    def beams(self) -> Tensor:
        """Says which slots are beams, [G, W] bool."""
        return self.slots != self.padding_slot

    def all_of(self, flags: Tensor) -> Tensor:
        """Returns which rows are beams of a search of which all have the `flags` [R] bool, [R] bool."""
        rows = torch.where(self.beams, self.rows, len(flags)).long()  # those of no beam have a place of their own
        every = torch.nn.functional.pad(flags, (0, 1), value=True)[rows].all(1, keepdim=True)
        return flags.new_zeros(len(flags) + 1).scatter(0, rows.flatten(), every.expand_as(rows).flatten())[:-1]

    def of_one_size(self, among: Tensor, most: Tensor) -> Iterator[tuple[Tensor, Groups]]:
        """Yields which of the groups `among` [G] bool have the same numbers of beams and of candidates `most` [G], and
        these without padding. Waits for the device."""
        sizes = torch.stack((self.beams.sum(1), most), 1)
        for width, count in sizes[among].unique(dim=0).tolist():
            chosen = among & (sizes[:, 0] == width) & (sizes[:, 1] == count)
            yield chosen, Groups(self.slots[chosen, :width], self.rows[chosen, :width], self.padding_slot, count)


@dataclass(frozen=True)
class RowScores:
    """Holds what `R` rows score their continuations by."""

    values: Tensor  # [R, V]: logits, or log-probabilities where they are
    normalized: bool = False
    again: Tensor | None = None  # [R] bool: rows whose log-probabilities were processed and are to be normalized again

    def normalizer(self, logsumexp: Tensor) -> Tensor:
        """Returns what is taken off each row's values, of which this is the `logsumexp` [R]: nothing of
        log-probabilities of which nothing is left."""
        if not self.normalized:
            return logsumexp
        if self.again is None:
            return torch.zeros_like(logsumexp)
        return torch.where(self.again & logsumexp.isfinite(), logsumexp, 0.0)

    @property
    def log_probabilities(self) -> Tensor:
        """Returns them of all tokens, as Hugging Face computes them: [R, V] float32"""
        values = self.values.float() if self.normalized else self.values.float().log_softmax(-1)
        if self.again is None:
            return values
        again = self.again & (values > float("-inf")).any(1)
        return torch.where(again[:, None], values.log_softmax(-1), values)
