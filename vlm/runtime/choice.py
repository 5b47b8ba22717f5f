"""How a batch's next tokens are chosen: decided on the host, part of a graph's key."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vlm.ops.beam_search import Groups
from vlm.runtime.request import Sequence


@dataclass(frozen=True)
class Choice:
    """The plainest way that serves all sequences of a batch."""

    single: str | None  # rows that are no beams: "greedy", "sample", "control" (penalties and prohibitions); None: none
    groups: int = 0  # beam searches, rounded up
    beams: int = 0  # of the widest
    most: int = 0  # candidates of the widest
    controlled: bool = False  # do penalties or prohibitions act on a beam search?
    top: bool = False  # are the likeliest tokens kept?

    @classmethod
    def of(cls, sequences: list[Sequence]) -> Choice:
        single = [s.request.params for s in sequences if s.width == 1]
        searches = [s.request.params for s in sequences if s.width > 1]
        how = None
        if single:
            sampled = any(p.temperature > 0 for p in single)
            how = "control" if any(p.controlled for p in single) else "sample" if sampled else "greedy"
        top = any(p.top_logprobs for p in single)
        if not searches:
            return cls(how, top=top)
        beams = max(p.num_beams for p in searches)
        most = max(s.width * max(2, 1 + s.num_stop_ids) for s in sequences if s.width > 1)
        rounded = 1 << (len(searches) - 1).bit_length()
        return cls(how, rounded, beams, most, any(p.controlled for p in searches), top)


class BeamRows:
    """Device buffers that tell a step which rows are beams of which search; their addresses are a graph's."""

    def __init__(self, spare: int, device: torch.device):
        self.spare, self.device = spare, device
        self._buffers: dict[tuple[int, int], torch.Tensor] = {}

    def fill(self, sequences: list[Sequence], choice: Choice) -> Groups:
        """The searches of a batch, in the order of its rows."""
        slots, rows, row = [], [], 0
        for sequence in sequences:
            if sequence.width > 1:
                extra = choice.beams - sequence.width
                slots.append(sequence.slots + [self.spare] * extra)
                rows.append([*range(row, row + sequence.width), *[0] * extra])
            row += sequence.width
        missing = choice.groups - len(slots)
        slots += [[self.spare] * choice.beams] * missing
        rows += [[0] * choice.beams] * missing
        buffer = self._buffer(choice)
        buffer.copy_(torch.tensor([slots, rows], dtype=torch.int32), non_blocking=True)
        return Groups(buffer[0], buffer[1], self.spare, choice.most)

    def _buffer(self, choice: Choice) -> torch.Tensor:
        size = (choice.groups, choice.beams)
        if size not in self._buffers:
            self._buffers[size] = torch.zeros((2, *size), dtype=torch.int32, device=self.device)
        return self._buffers[size]
