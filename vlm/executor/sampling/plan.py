"""How a batch's next tokens are chosen: decided on the host, part of a graph's key."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vlm.executor.inputs.packing import power_of_two
from vlm.ops.sampling.logits_processors import PLAIN, Processing
from vlm.ops.state.beams import Groups
from vlm.requests.sampling_params import SharedSettings
from vlm.requests.sequence import Sequence

# numbers of a search up to which a plan has them as they are; above, powers of two: each plan is a graph, and clients
# choose the numbers
EXACT_BEAMS, EXACT_CANDIDATES = 8, 64


@dataclass(frozen=True)
class SamplingPlan:
    """The plainest way that serves all sequences of a batch."""

    single: str | None  # rows that are no beams: "greedy", "sample", "process" (penalties and prohibitions); None: none
    groups: int = 0  # beam searches, rounded up
    beams: int = 0  # of the widest, rounded up
    most: int = 0  # candidates of the widest, rounded up
    processed: bool = False  # do penalties or prohibitions act on a beam search?
    top: bool = False  # are the likeliest tokens kept?
    processing: Processing = PLAIN
    logits: bool = False  # are logits kept?
    filtered: int = 0  # rows that draw by entropy or by probabilities alone, rounded up
    drafts: int = 0  # tokens proposed for each row

    @classmethod
    def from_sequences(cls, sequences: list[Sequence], drafts: int = 0) -> SamplingPlan:
        searches = [s for s in sequences if s.width > 1]
        settings = SharedSettings([s.request.params for s in sequences])
        single = [p for p in settings.distinct if p.num_beams == 1]
        how = None
        if single:
            samples = any(p.temperature > 0 for p in single)
            how = "process" if any(p.needs_processors for p in single) else "sample" if samples else "greedy"
        common = {
            "top": any(p.top_logprobs for p in single), "processing": _processing(sequences, settings),
            "filtered": _rows_that_filter(settings), "logits": any(p.returns_logits for p in single),
            "drafts": drafts,
        }  # fmt: skip
        if not searches:
            return cls(how, **common)
        beams = _rounded(max(s.width for s in searches), EXACT_BEAMS)
        most = _rounded(max(s.width * max(2, 1 + s.num_ends) for s in searches), EXACT_CANDIDATES)
        processed = any(p.needs_processors or p.renormalize_logits for p in settings.distinct if p.num_beams > 1)
        return cls(how, power_of_two(len(searches)), beams, most, processed, **common)


def _rounded(number: int, exact: int) -> int:
    return number if number <= exact else power_of_two(number)


def _rows_that_filter(settings: SharedSettings) -> int:
    count = sum(settings.each(lambda p: p.filtered)) if settings.any(lambda p: p.filtered) else 0
    return power_of_two(count) if count else 0


def _processing(sequences: list[Sequence], settings: SharedSettings) -> Processing:
    return Processing(
        tuple(sorted({kind for s in sequences for kind in s.rule_kinds})),
        cleans=settings.any(lambda p: p.remove_invalid_values),
        decays=settings.any(lambda p: p.exponential_decay_length_penalty),
        normalizes=settings.any(lambda p: p.renormalize_logits and p.num_beams > 1),
    )


class BeamRows:
    """Device buffers that tell a step which rows are beams of which search; their addresses are a graph's."""

    def __init__(self, padding_slot: int, device: torch.device):
        self.padding_slot, self.device = padding_slot, device
        self._buffers: dict[tuple[int, int], torch.Tensor] = {}

    def fill(self, sequences: list[Sequence], plan: SamplingPlan) -> Groups:
        """Fills in the searches of a batch, in the order of its rows."""
        slots, rows, row = [], [], 0
        for sequence in sequences:
            if sequence.width > 1:
                extra = plan.beams - sequence.width
                slots.append(sequence.slots + [self.padding_slot] * extra)
                rows.append([*range(row, row + sequence.width), *[0] * extra])
            row += sequence.width
        missing = plan.groups - len(slots)
        slots += [[self.padding_slot] * plan.beams] * missing
        rows += [[0] * plan.beams] * missing
        buffer = self._buffer(plan)
        buffer.copy_(torch.tensor([slots, rows], dtype=torch.int32), non_blocking=True)
        return Groups(buffer[0], buffer[1], self.padding_slot, plan.most)

    def _buffer(self, plan: SamplingPlan) -> torch.Tensor:
        size = (plan.groups, plan.beams)
        if size not in self._buffers:
            self._buffers[size] = torch.zeros((2, *size), dtype=torch.int32, device=self.device)
        return self._buffers[size]
