"""Which blocks sequences hold: those of their prompts from admission on, more burst by burst."""

from __future__ import annotations

from collections.abc import Iterable

from vlm.engine.block_manager import BlockManager
from vlm.engine.drafting import most_new
from vlm.engine.prefix import block_keys
from vlm.engine.scheduler_config import SchedulerConfig
from vlm.requests.sequence import PrefillChunk, Sequence


class SequenceBlocks:
    """Shares out the blocks of one pool; known beginnings of prompts, and beams, have some in common."""

    def __init__(self, blocks: BlockManager, config: SchedulerConfig):
        self.blocks, self.config = blocks, config

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.config.block_size)

    def exceeds_capacity(self, length: int, num_features: int, width: int = 1) -> bool:
        """Says whether a sequence of this final length would not fit the pool even alone."""
        # a beam has a spare block, too
        self_need, cross_need = width * (self.blocks_for(length) + (width > 1)), self.blocks_for(num_features)
        return self_need > self.blocks.quota["self"] or cross_need > self.blocks.quota["cross"]

    def allocate(self, sequence: Sequence) -> bool:
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

    def register(self, sequence: Sequence, start: int, end: int) -> None:
        """Registers the whole blocks between two places of the first beam, once their computation is on its way."""
        self._make_keys(sequence, end)
        for column in range(start // self.config.block_size, end // self.config.block_size):
            self.blocks.register(sequence.self_blocks[0][column], sequence.keys[column])

    def need(self, sequence: Sequence) -> int:
        """Returns how many blocks a sequence lacks for the next burst."""
        reach = min(sequence.scheduled + self._most_new(sequence), sequence.max_length)
        return sequence.width * max(0, self.blocks_for(reach) - len(sequence.self_blocks[0]))

    def grow(self, sequence: Sequence, need: int) -> None:
        """Gives a sequence the blocks that it lacks, its beams as many each."""
        for blocks in sequence.self_blocks if need else ():
            blocks += self.blocks.allocate(need // sequence.width, "self")

    def free(self, sequences: Iterable[Sequence]) -> None:
        """Returns all blocks of sequences."""
        own: list[int] = []
        cross: list[int] = []
        for sequence in sequences:
            for blocks in sequence.self_blocks:
                own += blocks
            own += sequence.spare_blocks
            cross += sequence.cross_blocks
            sequence.self_blocks = []
            sequence.spare_blocks = sequence.cross_blocks = ()
        self.blocks.free(own)
        self.blocks.free(cross, "cross")

    def _most_new(self, sequence: Sequence) -> int:
        """Returns how many tokens the next burst may bring, drafts or not."""
        return most_new(sequence, self.config.burst, self.config.num_speculative_tokens)

    def _has_first(self, sequence: Sequence, known: int) -> bool:
        """Says whether a sequence has its first new token of its prefill: where one is computed, beyond the tokens
        `known`. A beam search chooses several at once, and a step with drafts may bring more."""
        return known < len(sequence.tokens) - 1 and sequence.width == 1 and not sequence.max_drafts

    def _known(self, sequence: Sequence, prompt: int) -> list[int]:
        """Returns the blocks that hold the beginning of a sequence's prompt already."""
        if not self.config.prefix_sharing or sequence.request.params.scores_prompt:
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
