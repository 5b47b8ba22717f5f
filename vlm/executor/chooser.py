"""From logits to appended tokens, without the host: the end of every decode step, whatever made the logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vlm.executor.batch_state import BatchState
from vlm.executor.choice import Choice
from vlm.executor.logits_recorder import LogitsRecorder
from vlm.limits import MAX_TOP_LOGPROBS
from vlm.ops import beam_search, controls, sample
from vlm.ops.advance import advance
from vlm.ops.beam_state import Groups
from vlm.ops.likeliest import likeliest
from vlm.ops.token_rules import END, row_rules


@dataclass(frozen=True)
class DecodeRows:
    """The slots of a decode step's rows."""

    all: Tensor  # [R] int32
    single: Tensor  # [R] int32: the same, the spare slot in place of beams
    beams: Groups | None


@dataclass(frozen=True)
class Chooser:
    """Chooses the next tokens of a batch's rows and appends them to its slots."""

    state: BatchState
    logits: LogitsRecorder

    def choose(self, logits: Tensor, rows: DecodeRows, choice: Choice) -> Tensor | None:
        """logits [R, V] -> where beams are searched their parents [G, W], by which the cache is to follow"""
        if choice.logits:
            self.logits.record(logits, rows.all.long(), self.state.slots)
        if choice.single:
            self._choose(logits, rows, choice)
        return self._search(logits, rows, choice) if choice.groups else None

    def _choose(self, logits: Tensor, rows: DecodeRows, choice: Choice) -> None:
        """The next token of every row that is no beam."""
        state, slots, how = self.state, rows.all.long(), choice.single
        if how == "greedy":
            token, logprob = sample.greedy(logits)
        else:
            allowed = logits if how == "sample" else self._controlled(logits, rows, choice)
            token = sample.sample(allowed, state.sampling.of(slots), state.slots.lengths[slots], choice.filtered)
            logprob = sample.log_probability(logits, token)
        if choice.top:
            self._keep_top(logits, slots)
        advance(state.slots, rows.single, token, logprob)
        if how != "greedy":
            state.sampling.after(slots, state.slots)

    def _controlled(self, logits: Tensor, rows: DecodeRows, choice: Choice) -> Tensor:
        state = self.state
        return controls.apply(logits, state.slots, state.controls, rows.all, state.rules.rules, choice.processing)

    def _keep_top(self, logits: Tensor, slots: Tensor) -> None:
        values, ids, normalizer = likeliest(logits, min(MAX_TOP_LOGPROBS, logits.shape[1]))
        found = torch.stack((ids.int(), (values - normalizer[:, None]).view(torch.int32)), 1)
        at = self.state.slots.lengths[slots].long().clamp(max=self.state.top.shape[1] - 1)
        self.state.top[slots, at, :, : found.shape[2]] = found

    def _search(self, logits: Tensor, rows: DecodeRows, choice: Choice) -> Tensor:
        """The next tokens of every beam -> the beams they continue"""
        state = self.state
        if choice.controlled:
            # penalties act on log-probabilities here, as they do in Hugging Face's beam search
            logits = self._controlled(logits.float().log_softmax(-1), rows, choice)
        ends = self._ends(logits, rows) if END in choice.processing.rules else None
        return beam_search.step(logits, choice.controlled, state.slots, state.beams, rows.beams, ends)

    def _ends(self, logits: Tensor, rows: DecodeRows) -> Tensor:
        """Marks the tokens that complete a stop word of their row: [R, V] bool"""
        slots = rows.all.long()
        return row_rules(self.state.rules.rules, self.state.slots, slots, logits.shape[1]).marked(END)
