"""Picks what runs next: admits waiting sequences, shares out the prefills, reserves blocks for the coming burst,
preempts when none are left.

It touches no tensors. A sequence holds a slot a beam and its cross blocks from admission to its end, and grows its self
blocks burst by burst. Its prompt enters the cache in chunks, of which a step takes a limited number of tokens; it joins
the bursts when none is left.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field

from vlm.engine.block_manager import BlockManager
from vlm.engine.drafting import drafts_of, most_new
from vlm.engine.prefix import block_keys
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


@dataclass(frozen=True)
class SchedulerConfig:
    num_slots: int
    block_size: int
    burst: int  # decode steps between two looks of the host
    max_prefill_tokens: int = 8192  # a step
    vocab_size: int = 0  # ids from here on are rows of prompt tables
    prefix_sharing: bool = False  # only where a block's content follows from the prompt: not with cross-attention
    max_adapters: int = 0  # that sequences may run with at once
    batch_invariant: bool = False  # nothing is recomputed, and prompts are cut where they are cut when alone
    num_speculative_tokens: int = 0  # proposed for a sequence in a step, at most
    asynchronous: bool = False  # the device decodes on while the host reads what came before


class Scheduler:
    """First come, first served; the youngest sequence gives way when blocks run out."""

    def __init__(self, blocks: BlockManager, config: SchedulerConfig):
        self.blocks, self.config = blocks, config
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in order of admission
        self._slots = list(range(config.num_slots - 1, -1, -1))
        self._adapters: Counter[int] = Counter()  # of running sequences, those that have one

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.config.block_size)

    def exceeds_capacity(self, length: int, num_features: int, width: int = 1) -> bool:
        """Says whether a sequence of this final length would not fit the pool even alone."""
        # a beam has a spare block, too
        self_need, cross_need = width * (self.blocks_for(length) + (width > 1)), self.blocks_for(num_features)
        return self_need > self.blocks.quota["self"] or cross_need > self.blocks.quota["cross"]

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def schedule(self, in_flight: bool) -> Plan:
        """Plans the next step. Raises OutOfBlocks, nothing changed, when blocks are short with results `in_flight`."""
        plan = Plan()
        active = self._decoding()
        needs = [self._need(sequence) for sequence in active]
        if sum(needs) <= self.blocks.available("self"):
            for sequence, need in zip(active, needs, strict=True):
                self._grow(sequence, need)
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
        # whoever comes to an idle engine has the first token at once
        lone = all(s.scheduled == s.prompt_length for s in plan.running)
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
        for sequence in reversed(list(self.running)):
            self.release(sequence, computed=False)
            self._requeue(sequence)
        self.blocks.reset_prefix_cache()

    @property
    def idle(self) -> bool:
        """Says whether nobody holds a slot or a block."""
        return not self.running and len(self._slots) == self.config.num_slots and self.blocks.balanced

    def release(self, sequence: Sequence, computed: bool = True) -> None:
        """Takes a sequence out of the running ones and returns all that it holds."""
        is_whole = sequence.status is SequenceStatus.RUNNING
        if computed and is_whole and self.config.prefix_sharing and sequence.width == 1:
            self._register(sequence, 0, len(sequence.tokens) - 1)
        self.running.remove(sequence)
        if sequence.adapted:
            self._adapters -= Counter([sequence.request.adapter_id])
        self._slots += sequence.slots
        for blocks in (*sequence.self_blocks, sequence.spare_blocks):
            self.blocks.free(blocks)
        self.blocks.free(sequence.cross_blocks, "cross")
        sequence.slots, sequence.self_blocks = [], []
        sequence.spare_blocks = sequence.cross_blocks = sequence.pending_chunks = ()

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
        if (sequence.adapted and not self._has_adapter_room(sequence)) or not self._allocate(sequence):
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

    def _allocate(self, sequence: Sequence) -> bool:
        """Takes blocks for the prompt and the first burst, or for all tokens where none may be recomputed; False, with
        nothing changed, when there are not enough."""
        width, size, length = sequence.width, self.config.block_size, len(sequence.tokens)
        prompt = length - 1  # a decode step takes the last token, unless the chunk ahead of it does
        hits = self._known(sequence, prompt)
        num_first = int(self._has_first(sequence, len(hits) * size))
        reach = sequence.max_length if self.config.batch_invariant else length + num_first + self._most_new(sequence)
        each = self.blocks_for(min(reach, sequence.max_length))
        whole = prompt // size  # blocks that nothing will be added to: beams share them
        need = each - len(hits) + (width - 1) * (each - whole) + (width if width > 1 else 0)
        cross, blocks = self.blocks_for(sequence.num_features), self.blocks
        kept = blocks.num_evictable(hits) if hits else 0
        if need + kept > blocks.available("self") or cross > blocks.available("cross"):
            return False
        if hits:
            blocks.acquire(hits, "self")
        first = hits + blocks.allocate(each - len(hits), "self")
        sequence.self_blocks = [first]
        for _ in range(width - 1):
            blocks.share(first[:whole])
            sequence.self_blocks.append(first[:whole] + blocks.allocate(each - whole, "self"))
        if width > 1:
            sequence.spare_blocks = blocks.allocate(width, "self")
        sequence.cross_blocks = blocks.allocate(cross, "cross")
        if prompt:
            begins = [len(hits) * size] + [whole * size] * (width - 1)
            sequence.pending_chunks = [
                PrefillChunk(beam, begin, prompt + num_first) for beam, begin in enumerate(begins) if begin < prompt
            ]
        return True

    def _has_first(self, sequence: Sequence, known: int) -> bool:
        """Says whether a sequence has its first new token of its prefill: where one is computed, beyond the tokens
        `known`. A beam search chooses several at once, and a step with drafts may bring more."""
        return known < len(sequence.tokens) - 1 and sequence.width == 1 and not sequence.max_drafts

    def _known(self, sequence: Sequence, prompt: int) -> list[int]:
        """Returns the blocks that hold the beginning of a sequence's prompt already."""
        # what is known has no logits
        if not self.config.prefix_sharing or sequence.request.params.return_context_logits:
            return []
        self._make_keys(sequence, len(sequence.tokens))
        return self.blocks.lookup(sequence.keys[: prompt // self.config.block_size])

    def _make_keys(self, sequence: Sequence, length: int) -> None:
        if len(sequence.keys) < length // self.config.block_size:
            tokens, config, adapter_id = sequence.tokens[:length], self.config, sequence.request.adapter_id
            sequence.keys = block_keys(
                tokens, config.block_size, config.vocab_size, sequence.contents, adapter_id=adapter_id,
                known=sequence.keys,
            )  # fmt: skip

    def _register(self, sequence: Sequence, start: int, end: int) -> None:
        """Registers the whole blocks between two places of the first beam, once their computation is on its way."""
        self._make_keys(sequence, end)
        for column in range(start // self.config.block_size, end // self.config.block_size):
            self.blocks.register(sequence.self_blocks[0][column], sequence.keys[column])

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
                self._register(sequence, chunk.start, end)
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

    def _most_new(self, sequence: Sequence) -> int:
        """Returns how many tokens the next burst may bring, drafts or not."""
        return most_new(sequence, self.config.burst, self.config.num_speculative_tokens)

    def _need(self, sequence: Sequence) -> int:
        """Returns how many blocks a sequence lacks for the next burst."""
        reach = min(sequence.scheduled + self._most_new(sequence), sequence.max_length)
        return sequence.width * max(0, self.blocks_for(reach) - len(sequence.self_blocks[0]))

    def _reserve(self, sequence: Sequence, plan: Plan) -> None:
        # an earlier reservation of this round may have preempted it
        while sequence.status is SequenceStatus.RUNNING and self._need(sequence) > self.blocks.available("self"):
            self._preempt(self.running[-1], plan)
        if sequence.status is SequenceStatus.RUNNING:
            self._grow(sequence, self._need(sequence))

    def _grow(self, sequence: Sequence, need: int) -> None:
        """Gives a sequence the blocks that it lacks, its beams as many each."""
        for blocks in sequence.self_blocks if need else ():
            blocks += self.blocks.allocate(need // sequence.width, "self")

    def _preempt(self, sequence: Sequence, plan: Plan) -> None:
        """Puts a sequence back to the head of the queue with all its tokens: it is recomputed when there is room
        again."""
        self.release(sequence)
        self._requeue(sequence)
        plan.preempted.append(sequence)

    def _requeue(self, sequence: Sequence) -> None:
        sequence.status = SequenceStatus.PREEMPTED
        sequence.preemptions += 1
        self.waiting.appendleft(sequence)
