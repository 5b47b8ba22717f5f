"""Keeps the logits of a burst's steps on the device, for the sequences that want them."""

from __future__ import annotations

import torch
from torch import Tensor

from vlm.executor.packing import power_of_two
from vlm.ops.sequence_state import SequenceState
from vlm.requests.sequence import Sequence


class LogitsRecorder:
    """Buffers that a decode step writes, whose addresses are a graph's. They grow as more is wanted."""

    def __init__(self, num_slots: int, device: torch.device):
        self.device = device
        self.places = torch.zeros(num_slots, dtype=torch.int32, device=device)  # of each slot in the buffer
        self.starts = torch.zeros(num_slots, dtype=torch.int32, device=device)  # lengths at the burst's begin
        self.kept: Tensor | None = None  # [n + 1, steps, vocab] float32; the last row is nobody's

    @property
    def layout(self) -> tuple[int, ...]:
        return () if self.kept is None else tuple(self.kept.shape)

    def begin(self, sequences: list[Sequence], steps: int, vocab_size: int, state: SequenceState) -> None:
        """Makes room for a burst and says which slots are to be kept, in the order of their sequences."""
        slots = [s.slot for s in sequences if s.request.params.returns_logits]
        rows, longest = (self.kept.shape[0] - 1, self.kept.shape[1]) if self.kept is not None else (0, 0)
        if len(slots) > rows or steps > longest:
            size = (max(rows, power_of_two(len(slots))) + 1, max(longest, power_of_two(steps)), vocab_size)
            self.kept = None  # before more is taken
            self.kept = torch.zeros(size, device=self.device)
        at = torch.tensor(slots).to(self.device, non_blocking=True)
        self.places.fill_(self.kept.shape[0] - 1)
        self.places[at] = torch.arange(len(slots), dtype=torch.int32, device=self.device)
        self.starts.copy_(state.lengths)

    def record(self, logits: Tensor, slots: Tensor, state: SequenceState) -> None:
        """Records the logits [R, V] of the rows `slots` [R]; one that has ended writes where nobody reads"""
        step = (state.lengths[slots] - self.starts[slots]).clamp(0, self.kept.shape[1] - 1)
        self.kept[self.places[slots].long(), step.long()] = logits.float()

    def burst(self, sequences: list[Sequence], steps: int) -> Tensor:
        """Returns the logits [n, steps, vocab] of the sequences that want them; a view."""
        count = sum(s.request.params.returns_logits for s in sequences)
        return self.kept[:count, :steps]
