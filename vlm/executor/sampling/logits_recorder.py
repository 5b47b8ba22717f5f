"""Keeps logits for the sequences that want them: of a burst's steps on the device, of all before on the host."""

from __future__ import annotations

import torch
from torch import Tensor

from vlm.executor.inputs.packing import power_of_two
from vlm.ops.state.sequences import SequenceState
from vlm.requests.sequence import Sequence


class LogitsRecorder:
    """Buffers that a decode step writes, whose addresses are a graph's. They grow as more is wanted."""

    def __init__(self, num_slots: int, device: torch.device):
        self.device = device
        self.places = torch.zeros(num_slots, dtype=torch.int32, device=device)  # of each slot in the buffer
        self.starts = torch.zeros(num_slots, dtype=torch.int32, device=device)  # lengths at the burst's begin
        self._context: dict[int, list[Tensor]] = {}  # on the host, by the sequence's id; the same of its output:
        self._output: dict[int, list[Tensor]] = {}
        self.buffer = torch.empty(0, 0, 0, device=device)  # [n + 1, steps, vocab] float32; the last row is nobody's

    @property
    def layout(self) -> tuple[int, ...]:
        return tuple(self.buffer.shape)

    def begin(self, sequences: list[Sequence], steps: int, vocab_size: int, state: SequenceState) -> None:
        """Makes room for a burst and says which slots are to be kept, in the order of their sequences."""
        slots = [s.slot for s in sequences if s.request.params.returns_logits]
        rows, longest = max(0, self.buffer.shape[0] - 1), self.buffer.shape[1]
        if len(slots) > rows or steps > longest:
            size = (max(rows, power_of_two(len(slots))) + 1, max(longest, power_of_two(steps)), vocab_size)
            self.buffer = self.buffer.new_empty(0, 0, 0)  # before more is taken
            self.buffer = torch.zeros(size, device=self.device)
        at = torch.tensor(slots).to(self.device, non_blocking=True)
        self.places.fill_(self.buffer.shape[0] - 1)
        self.places[at] = torch.arange(len(slots), dtype=torch.int32, device=self.device)
        self.starts.copy_(state.lengths)

    def record(self, logits: Tensor, slots: Tensor, state: SequenceState) -> None:
        """Records the logits [R, V] of the rows `slots` [R]; one that has ended writes where nobody reads"""
        step = (state.lengths[slots] - self.starts[slots]).clamp(0, self.buffer.shape[1] - 1)
        self.buffer[self.places[slots].long(), step.long()] = logits.float()

    def burst(self, sequences: list[Sequence], steps: int) -> Tensor:
        """Returns the logits [n, steps, vocab] of the sequences that want them; a view."""
        count = sum(s.request.params.returns_logits for s in sequences)
        return self.buffer[:count, :steps]

    # --- on the host ---
    def keep_context(self, sequence_id: int, start: int, part: Tensor) -> None:
        """Keeps logits [n, vocab] of a prompt from its token `start` on; those from 0 replace what was kept."""
        logits = self._context.setdefault(sequence_id, [])
        if start == 0:
            logits.clear()
        logits.append(part.float().cpu())

    def keep(self, sequence_id: int, logits: Tensor) -> None:
        """Keeps logits [n, vocab] float32 on the host of an output's next tokens."""
        self._output.setdefault(sequence_id, []).append(logits)

    def take(self, sequence: Sequence) -> tuple[Tensor | None, Tensor | None]:
        """Forgets what was kept for a sequence, and returns what its request wants of it: logits of its prompt's tokens
        [prompt, vocab] and of its output's [new, vocab]; None where it has no output."""
        context, parts = self._context.pop(sequence.id, []), self._output.pop(sequence.id, [])
        if not sequence.num_generated or not parts:
            return None, None
        params, output = sequence.request.params, torch.cat(parts)[: sequence.num_generated]
        # what the prompt's last token gives is the output's first
        whole = torch.cat([*context, output[:1]]) if params.return_context_logits else None
        return whole, output if params.return_generation_logits else None
