"""Picks what runs next: admits waiting sequences, reserves blocks for the coming burst, preempts when none are left.

It touches no tensors. A sequence holds a slot and its cross blocks from admission to its end, and grows its self
blocks burst by burst.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from vlm.runtime.block_manager import BlockManager
from vlm.runtime.request import Sequence


@dataclass
class Plan:
    """One step's work."""

    admitted: list[Sequence] = field(default_factory=list)  # to encode and prefill
    running: list[Sequence] = field(default_factory=list)  # rows of the burst, the admitted ones included
    steps: int = 0  # decode steps of the burst
    preempted: list[Sequence] = field(default_factory=list)


class Starved(Exception):
    """Blocks ran out while a burst is under way: collect it first, then schedule again."""


class Scheduler:
    """First come, first served; the youngest sequence gives way when blocks run out."""

    def __init__(self, blocks: BlockManager, num_slots: int, block_size: int, burst: int):
        self.blocks, self.block_size, self.burst = blocks, block_size, burst
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in order of admission
        self._slots = list(range(num_slots - 1, -1, -1))

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def never_fits(self, length: int, num_features: int, width: int = 1) -> bool:
        """Would a sequence of this final length not fit the pool even alone?"""
        self_need, cross_need = self._own(length, width), self.blocks_for(num_features)
        return self_need > self.blocks.quota["self"] or cross_need > self.blocks.quota["cross"]

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def schedule(self, in_flight: bool) -> Plan:
        """The next burst. Raises Starved, with nothing changed, when blocks are short while results are `in_flight`."""
        plan = Plan()
        active = self._unfinished()
        if in_flight and sum(map(self._need, active)) > self.blocks.available("self"):
            raise Starved
        for sequence in active:
            self._reserve(sequence, plan)
        if not plan.preempted:
            self._admit(plan)
        plan.running = self._unfinished()
        plan.steps = min(self.burst, max((s.max_length - s.scheduled for s in plan.running), default=0))
        for sequence in plan.running:
            sequence.scheduled = min(sequence.scheduled + plan.steps, sequence.max_length)
        return plan

    def release(self, sequence: Sequence) -> None:
        """Takes a sequence out of the running ones and returns all that it holds."""
        self.running.remove(sequence)
        self._slots += sequence.slots
        for blocks in (*sequence.self_blocks, sequence.spare_blocks, sequence.cross_blocks):
            self.blocks.free(blocks)
        sequence.slots, sequence.self_blocks, sequence.spare_blocks, sequence.cross_blocks = [], [], [], []

    def _admit(self, plan: Plan) -> None:
        while self.waiting and len(self._slots) >= self.waiting[0].width:
            sequence = self.waiting[0]
            first, width = min(len(sequence.tokens) + self.burst, sequence.max_length), sequence.width
            cross = self.blocks_for(sequence.num_features)
            if self._own(first, width) > self.blocks.available("self") or cross > self.blocks.available("cross"):
                return
            self.waiting.popleft()
            sequence.slots = [self._slots.pop() for _ in range(width)]
            each = self.blocks_for(first)
            sequence.self_blocks = [self.blocks.allocate(each, "self") for _ in range(width)]
            sequence.spare_blocks = self.blocks.allocate(width if width > 1 else 0, "self")
            sequence.cross_blocks = self.blocks.allocate(cross, "cross")
            sequence.scheduled = len(sequence.tokens)
            self.running.append(sequence)
            plan.admitted.append(sequence)

    def _unfinished(self) -> list[Sequence]:
        return [s for s in self.running if s.scheduled < s.max_length]

    def _own(self, length: int, width: int) -> int:
        """Self blocks of `width` beams of this length, each with a spare one where there are several."""
        return width * (self.blocks_for(length) + (width > 1))

    def _need(self, sequence: Sequence) -> int:
        """Blocks it lacks for the next burst."""
        reach = min(sequence.scheduled + self.burst, sequence.max_length)
        return sequence.width * max(0, self.blocks_for(reach) - len(sequence.self_blocks[0]))

    def _reserve(self, sequence: Sequence, plan: Plan) -> None:
        # an earlier reservation of this round may have preempted it
        while sequence.slots and self._need(sequence) > self.blocks.available("self"):
            self._preempt(self.running[-1], plan)
        if sequence.slots:
            each = self._need(sequence) // sequence.width
            for blocks in sequence.self_blocks:
                blocks += self.blocks.allocate(each, "self")

    def _preempt(self, sequence: Sequence, plan: Plan) -> None:
        """Back to the head of the queue with all its tokens: it is recomputed when there is room again."""
        self.release(sequence)
        sequence.preemptions += 1
        self.waiting.appendleft(sequence)
        plan.preempted.append(sequence)
