"""The sequences of an engine from their admission to their end: what bursts bring them, and what they come to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from vlm.engine.drafting import learn
from vlm.engine.endings import Endings, end_of_text
from vlm.engine.scheduler import Scheduler
from vlm.executor.decode_burst import DecodeBurst, StepOutput
from vlm.executor.executor import Executor
from vlm.requests.finish import STOP
from vlm.requests.sequence import Sequence
from vlm.requests.token_update import Completion, TokenUpdate


class LiveSequences:
    """Grows sequences by their bursts, and returns what the ended ones hold."""

    def __init__(self, executor: Executor, scheduler: Scheduler, endings: Endings):
        self._executor, self._scheduler, self._endings = executor, scheduler, endings
        self.by_id: dict[int, Sequence] = {}
        self.ended: list[Sequence] = []  # freed beside a burst: of a full batch that takes as long as to admit one

    @property
    def adapters(self) -> set[int]:
        """Returns the adapters that they have, those of the waiting ones, too."""
        return {sequence.request.adapter_id for sequence in self.by_id.values()}

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Takes sequences that begin to wait."""
        self.by_id.update((sequence.id, sequence) for sequence in sequences)

    def apply(self, burst: DecodeBurst) -> list[TokenUpdate]:
        """Takes a burst's tokens over into its sequences and releases the ended ones."""
        # the others were released while the burst ran: they had ended one burst earlier
        rows = [(s, row) for s, row in zip(burst.sequences, burst.collect(), strict=True) if not s.finished]
        for sequence, row in rows:
            if sequence.max_drafts:
                learn(sequence, row, burst)
        updates = [self._grow(sequence, row) for sequence, row in rows if sequence.width == 1]
        if searches := [sequence for sequence, row in rows if sequence.width > 1 and row.code]:
            updates += self._end_searches(searches)
        self._release([sequence for sequence, _ in rows if sequence.finished])
        return updates

    def end(self, numbers: Iterable[int], reason: str) -> list[TokenUpdate]:
        """Ends sequences where they are, the waiting ones too."""
        sequences = [self.by_id[number] for number in numbers]
        waiting = [sequence for sequence in sequences if sequence.queued]
        for sequence in waiting:
            self._scheduler.waiting.remove(sequence)
        for sequence in sequences:
            sequence.finish(reason)
        self._drop(waiting)
        self._release([sequence for sequence in sequences if sequence not in waiting])
        return [self._last_update(sequence, 0) for sequence in sequences]

    def _grow(self, sequence: Sequence, row: StepOutput) -> TokenUpdate:
        """Takes over a burst's tokens, up to where the text stops."""
        tokens, code = sequence.tokens, row.code
        known = len(tokens)
        new = row.length - known
        tokens += row.tokens[:new]
        sequence.logprobs += row.logprobs[:new]
        sequence.top_logprobs += row.top[:new]
        if row.logits is not None:
            self._executor.logits.keep(sequence.id, row.logits[:new])
        if not known - sequence.prompt_length:
            self._take_prompt(sequence)
        if sequence.stops and (end := end_of_text(sequence, known)) is not None:
            new, code = end - known, STOP
            kept = end - sequence.prompt_length
            del tokens[end:], sequence.logprobs[kept:], sequence.top_logprobs[kept:]
        if not code:
            return sequence.update(new)
        sequence.finish(self._endings.reason(sequence, code))
        return self._last_update(sequence, new)

    def _take_prompt(self, sequence: Sequence) -> None:
        """Takes over what was kept of a prompt, once the first token has come of it."""
        if sequence.request.params.prompt_logprobs is not None:
            sequence.prompt = self._executor.prompt_logprobs.take(sequence)

    def _end_searches(self, sequences: list[Sequence]) -> list[TokenUpdate]:
        """Ends beam searches: they bring their tokens then, the best hypothesis' as the sequence's own."""
        for sequence, hypotheses in zip(sequences, self._executor.hypotheses(sequences), strict=True):
            sequence.hypotheses = tuple(
                replace(each, finish_reason=self._endings.hypothesis_reason(sequence, each)) for each in hypotheses
            )
            best = sequence.hypotheses[0]
            sequence.tokens, sequence.logprobs = sequence.tokens + best.token_ids, list(best.logprobs)
            sequence.finish(best.finish_reason)
        return [self._last_update(sequence, sequence.num_generated) for sequence in sequences]

    def _last_update(self, sequence: Sequence, num_new: int) -> TokenUpdate:
        return sequence.update(num_new, self._completion(sequence))

    def _completion(self, sequence: Sequence) -> Completion:
        if not sequence.request.params.returns_logits:
            return sequence.completion()
        context_logits, generation_logits = self._executor.logits.take(sequence)
        return sequence.completion(context_logits, generation_logits)

    def _release(self, sequences: list[Sequence]) -> None:
        """Returns what ended sequences hold, of all of them at once: a full batch ends together."""
        if sequences:
            self._scheduler.release(sequences)
            self._drop(sequences)
            self.ended += sequences

    def _drop(self, sequences: list[Sequence]) -> None:
        self._executor.release(sequences)
        for sequence in sequences:
            del self.by_id[sequence.id]
