"""From logits to appended tokens, without the host: the end of every decode step, whatever made the logits."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from vlm.executor.sampling.logits_recorder import LogitsRecorder
from vlm.executor.sampling.plan import SamplingPlan
from vlm.executor.sampling.prompt_logprobs import PromptLogprobsRecorder
from vlm.executor.state.batch_state import BatchState
from vlm.limits import MAX_TOP_LOGPROBS
from vlm.ops.sampling import beam_search, logits_processors
from vlm.ops.sampling.append_likeliest import append_likeliest
from vlm.ops.sampling.append_sampled import append_sampled
from vlm.ops.sampling.prompt_lookup import propose
from vlm.ops.sampling.topk_logprobs import topk_logprobs
from vlm.ops.state.beams import Groups, RowScores
from vlm.ops.state.token_rules import END, row_rules
from vlm.requests.finish import RUNNING


@dataclass(frozen=True)
class DecodeRows:
    """The slots of a decode step's rows."""

    all: Tensor  # [R] int32
    single: Tensor  # [R] int32: the same, the padding slot in place of beams
    beams: Groups | None
    adapted: bool  # has any of them an adapter?
    cross_rows: int = 0  # of encoders' outputs, that they attend to together


@dataclass(frozen=True)
class Sampler:
    """Chooses the next tokens of a batch's rows and appends them to its slots."""

    state: BatchState
    logits: LogitsRecorder
    prompt_logprobs: PromptLogprobsRecorder = field(default_factory=PromptLogprobsRecorder)

    def propose(self, rows: DecodeRows, plan: SamplingPlan, vocab_size: int) -> Tensor:
        """Proposes next tokens of every row that is no beam, [drafts, R] int32: see vlm.ops.sampling.prompt_lookup."""
        return propose(self.state.slots, self.state.drafts, rows.single, plan.drafts, vocab_size)

    def verify(self, logits: Tensor, rows: DecodeRows, plan: SamplingPlan, proposed: Tensor) -> None:
        """Chooses the tokens after those that `sample` has appended, from the logits [drafts, R, V] after each of the
        `proposed` tokens [drafts, R], for as long as a row's are what was chosen.

        Each is chosen as if its step were the only one: all settings hold, and tokens are those without drafts.
        """
        plan, slots, state = replace(plan, groups=0), rows.single, self.state.slots
        for own_logits, token in zip(logits, proposed, strict=True):
            s = slots.long()
            chosen = state.tokens[s, state.lengths[s].long() - 1]
            accepted = (chosen == token) & (state.finish[s] == RUNNING)
            slots = torch.where(accepted, slots, self.state.padding_slot)
            self.state.drafts.num_accepted.index_add_(0, s, accepted.int())
            self.sample(own_logits, DecodeRows(slots, slots, None, rows.adapted), plan)

    def sample(self, logits: Tensor, rows: DecodeRows, plan: SamplingPlan) -> Tensor | None:
        """Takes logits [R, V] -> where beams are searched their parents [G, W], by which the cache is to follow"""
        if plan.logits:
            self.logits.record(logits, rows.all.long(), self.state.slots)
        if plan.single:
            self._sample(logits, rows, plan)
        return None if rows.beams is None else self._search(logits, rows, rows.beams, plan)

    def _sample(self, logits: Tensor, rows: DecodeRows, plan: SamplingPlan) -> None:
        """Chooses the next token of every row that is no beam."""
        state, how = self.state, plan.single
        if plan.top:
            self._keep_top(logits, rows.all.long())
        if how == "greedy":
            append_likeliest(state.slots, rows.single, logits)
            return
        append_sampled(
            state.slots, rows.single, state.sampling, all_slots=rows.all, logits=logits, by_entropy=plan.filtered,
            scores=logits if how == "sample" else self._processed(logits, rows, plan),
        )  # fmt: skip

    def _processed(self, logits: Tensor, rows: DecodeRows, plan: SamplingPlan, groups: Groups | None = None) -> Tensor:
        state = self.state
        return logits_processors.apply(
            logits, state.slots, state.penalties, rows.all, state.rules.rules, plan.processing, groups
        )

    def _keep_top(self, logits: Tensor, slots: Tensor) -> None:
        """Keeps the likeliest tokens of the rows `slots` [R] int64, but for those that have ended: one that is full
        has no place after its last token."""
        slots = torch.where(self.state.slots.finish[slots] == RUNNING, slots, self.state.padding_slot)
        values, ids, normalizer = topk_logprobs(logits, min(MAX_TOP_LOGPROBS, logits.shape[1]))
        top = torch.stack((ids.int(), (values - normalizer[:, None]).view(torch.int32)), 1)
        at = self.state.slots.lengths[slots].long().clamp(max=self.state.top.shape[1] - 1)
        self.state.top[slots, at, :, : top.shape[2]] = top

    def _search(self, logits: Tensor, rows: DecodeRows, groups: Groups, plan: SamplingPlan) -> Tensor:
        """Chooses the next tokens of every beam -> the beams they continue"""
        state, again = self.state, None
        if plan.processed:
            logits = self._processed(logits, rows, plan, groups)
        if plan.processing.normalizes:
            again = state.penalties.normalize[rows.all.long()]
        ends = self._ends(logits, rows) if END in plan.processing.rules else None
        row_scores = RowScores(logits, normalized=plan.processed, again=again)
        return beam_search.step(row_scores, state.slots, state.beams, groups, ends)

    def _ends(self, logits: Tensor, rows: DecodeRows) -> Tensor:
        """Marks the tokens that complete a stop word of their row: [R, V] bool"""
        slots = rows.all.long()
        return row_rules(self.state.rules.rules, self.state.slots, slots, logits.shape[1]).marked(END)
