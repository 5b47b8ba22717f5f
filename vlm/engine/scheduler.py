"""Picks what runs next: admits waiting sequences, shares out the prefills, has blocks reserved for the coming
burst, preempts when none are left.

It touches no tensors. A sequence holds a slot a beam and its cross blocks from admission to its end, and grows its self
blocks burst by burst. Its prompt enters the cache in chunks, of which a step takes a limited number of tokens; it joins
the bursts when none is left.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from vlm.engine.block_manager import BlockManager
from vlm.engine.drafting import drafts_of, most_new
from vlm.engine.scheduler_config import SchedulerConfig
from vlm.engine.sequence_blocks import SequenceBlocks
from vlm.requests.sequence import PrefillChunk, Sequence, SequenceStatus


@dataclass
class Plan:
    """One step's work."""

    admitted: list[Sequence] = field(default_factory=list)  # to encode
    prefills: list[tuple[Sequence, PrefillChunk]] = field(default_factory=list)
    running: list[Sequence] = field(default_factory=list)  # rows of the burst, those prefilled in this step included
    first: list[Sequence] = field(default_factory=list)  # those of them whose prefill gives a token ahead of its steps
    steps: int = 0  # decode steps of the burst,
    further_steps: int = 0  # … and of one behind it, which is launched at once
    drafts: int = 0  # tokens proposed for each of its sequences in a step
    preempted: list[Sequence] = field(default_factory=list)


class OutOfBlocks(Exception):
    """Blocks ran out while a burst is under way: collect it first, then schedule again."""


class Scheduler:
    """First come, first served; the youngest sequence gives way when blocks run out."""

    def __init__(self, blocks: BlockManager, config: SchedulerConfig):
        self.blocks, self.config = blocks, config
        self._sequence_blocks = SequenceBlocks(blocks, config)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in order of admission
        self._slots = list(range(config.num_slots - 1, -1, -1))
        self._adapters: Counter[int] = Counter()  # of running sequences, those that have one

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def exceeds_capacity(self, length: int, num_features: int, width: int = 1) -> bool:
        """Says whether a sequence of this final length would not fit the pool even alone."""
        return self._sequence_blocks.exceeds_capacity(length, num_features, width)

    def add(self, sequences: Iterable[Sequence]) -> None:
        self.waiting.extend(sequences)

    def schedule(self, in_flight: bool, *, streamed: bool = True) -> Plan:
        """Plans the next step, `streamed` as LLMEngine has it. Raises OutOfBlocks, nothing changed, when blocks are
        short with results `in_flight`."""
        plan = Plan()
        active = self._decoding()
        needs = [self._sequence_blocks.need(sequence) for sequence in active]
        if sum(needs) <= self.blocks.available("self"):
            for sequence, need in zip(active, needs, strict=True):
                self._sequence_blocks.grow(sequence, need)
        elif in_flight:
            raise OutOfBlocks
        else:
            for sequence in active:
                self._reserve(sequence, plan)
        room = self.config.max_prefill_tokens
        for sequence in self.running:
            room = self._plan_chunks(sequence, plan, room)
        if not plan.preempted:
            room = self._admit(plan, room)
        plan.running = self._decoding()
        # whoever comes to an idle engine has the first token at once; a host that decodes by itself looks whether that
        # is the last one
        lone = (streamed or not self.config.asynchronous) and all(s.scheduled == s.prompt_length for s in plan.running)
        plan.first = [sequence for sequence, chunk in plan.prefills if sequence.ends_with(chunk)]
        for sequence in plan.first:
            sequence.scheduled += 1
        plan.steps, plan.further_steps = self._steps(plan, self._num_joining(room), lone=lone)
        plan.drafts = drafts_of(plan.running, self.config.num_speculative_tokens)
        for sequence in plan.running:
            sequence.scheduled += most_new(sequence, plan.steps + plan.further_steps, plan.drafts)
        return plan

    def admit(self) -> list[Sequence]:
        """Admits whom there are slots and blocks for, ahead of the step that plans their prompts and has them
        decode."""
        return list(iter(self._admit_next, None))

    def requeue_all(self) -> None:
        """Requeues all after a step that failed: nobody runs, and no block's content is trusted. The running ones wait
        again."""
        released = self.running
        self.release(released, computed=False)
        for sequence in reversed(released):
            self._requeue(sequence)
        self.blocks.reset_prefix_cache()

    @property
    def idle(self) -> bool:
        """Says whether nobody holds a slot or a block."""
        return not self.running and len(self._slots) == self.config.num_slots and self.blocks.balanced

    def release(self, sequences: Items[Sequence], computed: bool = True) -> None:
        """Takes sequences out of the running ones and returns all that they hold."""
        if computed and self.config.prefix_sharing:
            for sequence in sequences:
                if sequence.width == 1 and not sequence.pending_chunks:
                    self._sequence_blocks.register(sequence, 0, len(sequence.tokens) - 1)
        gone = set(sequences)
        self.running = [sequence for sequence in self.running if sequence not in gone]
        self._adapters -= Counter(sequence.request.adapter_id for sequence in sequences if sequence.adapted)
        self._sequence_blocks.free(sequences)
        for sequence in sequences:
            self._slots += sequence.slots
            sequence.slots, sequence.pending_chunks = [], ()

    # --- prompts ---
    def _admit(self, plan: Plan, room: int) -> int:
        """Admits whom there are slots, blocks and room for; returns what is left of the room."""
        while room > 0 and (sequence := self._admit_next()) is not None:
            plan.admitted.append(sequence)
            room = self._plan_chunks(sequence, plan, room)
        return room

    def _admit_next(self) -> Sequence | None:
        """Admits who waits first; None where nobody does, or there is no slot, block or room for its adapter."""
        if not self.waiting or len(self._slots) < self.waiting[0].width:
            return None
        sequence = self.waiting[0]
        if (sequence.adapted and not self._has_adapter_room(sequence)) or not self._sequence_blocks.allocate(sequence):
            return None
        if sequence.adapted:
            self._adapters[sequence.request.adapter_id] += 1
        self.waiting.popleft()
        sequence.slots = self._slots[: -sequence.width - 1 : -1]
        del self._slots[-sequence.width :]
        sequence.scheduled = len(sequence.tokens)
        sequence.first_scheduled_time = sequence.first_scheduled_time or time.perf_counter()
        sequence.status = SequenceStatus.PREFILLING
        self.running.append(sequence)
        return sequence

    def _num_joining(self, room: int) -> int:
        """Returns how many sequences will decode as soon as their prompts are computed: for which this step had no
        room."""
        waiting = min(len(self.waiting), len(self._slots)) if room <= 0 else 0
        return waiting + sum(s.status is SequenceStatus.PREFILLING for s in self.running)

    def _has_adapter_room(self, sequence: Sequence) -> bool:
        """Says whether a sequence's adapter is in use already, or may be, too."""
        return sequence.request.adapter_id in self._adapters or len(self._adapters) < self.config.max_adapters

    def _plan_chunks(self, sequence: Sequence, plan: Plan, room: int) -> int:
        """Plans as much of a prompt as there is room for; returns what is left of the room."""
        while sequence.pending_chunks and room > 0:
            chunk = sequence.pending_chunks[0]
            end = min(chunk.end, chunk.start + self.config.max_prefill_tokens)
            if end > chunk.start + room and self.config.batch_invariant:
                return 0
            end = min(end, chunk.start + room)
            plan.prefills.append((sequence, PrefillChunk(chunk.beam, chunk.start, end)))
            rest = sequence.pending_chunks[1:]
            sequence.pending_chunks = [PrefillChunk(chunk.beam, end, chunk.end), *rest] if end < chunk.end else rest
            room -= end - chunk.start
            if self.config.prefix_sharing and chunk.beam == 0:
                self._sequence_blocks.register(sequence, chunk.start, end)
        if not sequence.pending_chunks:
            sequence.status = SequenceStatus.RUNNING
        return room

    # --- bursts ---
    def _decoding(self) -> list[Sequence]:
        running = SequenceStatus.RUNNING
        return [s for s in self.running if s.status is running and s.scheduled < s.max_length]

    def _steps(self, plan: Plan, joining: int, *, lone: bool) -> tuple[int, int]:
        """Returns the steps of the burst, and of one behind it: the fewer the more are `joining`, one where they are a
        sixth of all, as a step takes about as long for few sequences as for all. Of the `lone` the first burst brings
        each a token and no more; where nobody joins, the device need not wait for the host to plan the next one."""
        longest = max((s.max_length - s.scheduled for s in plan.running), default=0)
        running = len(plan.running)
        if lone:
            steps = min(int(len(plan.first) < running), longest)
            burst = self.config.burst if self.config.asynchronous and not joining else 0
            return steps, max(0, min(burst, longest) - steps)
        burst = self.config.burst * (running - 5 * joining) // max(1, running + joining)
        return min(max(1, burst), longest), 0

    def _reserve(self, sequence: Sequence, plan: Plan) -> None:
        # an earlier reservation of this round may have preempted it
        need = self._sequence_blocks.need
        while sequence.status is SequenceStatus.RUNNING and need(sequence) > self.blocks.available("self"):
            self._preempt(self.running[-1], plan)
        if sequence.status is SequenceStatus.RUNNING:
            self._sequence_blocks.grow(sequence, need(sequence))

    def _preempt(self, sequence: Sequence, plan: Plan) -> None:
        """Puts a sequence back to the head of the queue with all its tokens: it is recomputed when there is room
        again."""
        self.release([sequence])
        self._requeue(sequence)
        plan.preempted.append(sequence)

    def _requeue(self, sequence: Sequence) -> None:
        sequence.status = SequenceStatus.PREEMPTED
        sequence.preemptions += 1
        self.waiting.appendleft(sequence)
