"""What a request forbids, discourages or favours, applied to its logits in the order of Hugging Face's processors.

Biases of sequences, penalties, repeated n-grams, early ends (`penalize`), bad words, several forced ends, invalid
values, ends that get likelier, and at last suppressed tokens. Hugging Face's normalization behind all of them is a
beam search's (`beam_search`): no other choice sees it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from vlm.ops.beam_state import Groups
from vlm.ops.penalize import NGRAM, inside, penalize
from vlm.ops.penalty_state import PenaltyState
from vlm.ops.sequence_state import SequenceState
from vlm.ops.token_rules import ALLOW, BAN, BIAS, END, FORCE, SEEN, SUPPRESS, RowRules, TokenRules, row_rules


@dataclass(frozen=True)
class Processing:
    """What a batch needs beyond penalties, short n-grams and shortest lengths. Known to the host, part of a graph."""

    rules: tuple[int, ...] = ()  # kinds of rules about tokens
    ngrams: int = NGRAM  # size of the longest n-gram
    cleans: bool = False  # invalid values become finite
    decays: bool = False  # ends get likelier
    normalizes: bool = False  # chances of some beams add up to 1 again, behind all else

    @property
    def only_bans(self) -> bool:
        """Says whether rules do nothing but forbid tokens, of which it does not matter when."""
        return not (self.cleans or self.decays) and {BAN, SUPPRESS} >= self.acting != set()

    @property
    def acting(self) -> set[int]:
        """Returns the kinds of rules that change logits."""
        return {*self.rules} - {END}


PLAIN = Processing()


def apply(
    logits: Tensor,
    state: SequenceState,
    penalties: PenaltyState,
    slots: Tensor,
    rules: TokenRules | None = None,
    processing: Processing = PLAIN,
    groups: Groups | None = None,
) -> Tensor:
    """Processes logits [R, V] of the rows `slots` [R] -> float32 [R, V] with what is forbidden at -inf; `groups`: rows
    that are beams of one search, where they are, whose log-probabilities are processed. Nothing waits for the host."""
    penalized = partial(
        penalize, state=state, penalties=penalties, slots=slots, longest=processing.ngrams,
        log_probabilities=groups is not None,  # as in Hugging Face's beam search
    )  # fmt: skip
    if rules is not None and processing.only_bans:
        return penalized(logits, bans=rules)
    s = slots.long()
    token_rules = row_rules(rules, state, s, logits.shape[1]) if rules is not None and processing.acting else None
    if token_rules is None or not {BIAS, SEEN} & processing.acting:
        logits = penalized(logits)
    else:
        logits = logits.float() if groups is None else logits.float().log_softmax(-1)
        logits = _favoured(logits, penalties.input_repetition[s][:, None], token_rules, processing.rules)
        logits = penalized(logits, log_probabilities=False)  # they are that already
    if token_rules is not None:
        logits = _ruled(logits, token_rules, processing.rules, groups)
    if processing.cleans:
        logits = _cleaned(logits, penalties.clean[s][:, None])
    if processing.decays:
        ends, length = inside(state.stop_ids[s].long(), logits.shape[1]), state.lengths[s][:, None]
        logits = _ending(logits, ends, length, penalties.decay_starts[s][:, None], penalties.decay_factors[s][:, None])
    if token_rules is not None and SUPPRESS in processing.rules:
        logits = logits.masked_fill(token_rules.marked(SUPPRESS), float("-inf"))
    return logits


def _favoured(logits: Tensor, repetition: Tensor, token_rules: RowRules, kinds: tuple[int, ...]) -> Tensor:
    if BIAS in kinds:
        logits = logits + token_rules.bias()
    if SEEN in kinds:
        scores = torch.where(logits < 0, logits / repetition, logits * repetition)
        logits = torch.where(token_rules.marked(SEEN), scores, logits)
    return logits


def _ruled(logits: Tensor, token_rules: RowRules, kinds: tuple[int, ...], groups: Groups | None) -> Tensor:
    """Forbids bad words, all but what is allowed, and where one of several ends must come, all but these, whose scores
    become alike."""
    if BAN in kinds:
        logits = logits.masked_fill(token_rules.marked(BAN), float("-inf"))
    if ALLOW in kinds:
        logits = _allowed(logits, token_rules.marked(ALLOW), groups)
    if FORCE in kinds:
        force = token_rules.marked(FORCE)
        scores = torch.where(force, 0.0, float("-inf"))
        logits = torch.where(force.any(1, keepdim=True), scores, logits)
    return logits


def _allowed(logits: Tensor, allow: Tensor, groups: Groups | None) -> Tensor:
    """Forbids all but the tokens `allow` [R, V] bool of rows that have some; where nothing else is left of a row, or of
    all beams of a search, these may come again, with scores that are alike."""
    logits = logits.masked_fill(allow.any(1, keepdim=True) & ~allow, float("-inf"))
    stuck = logits.amax(1) == float("-inf")
    if groups is not None:
        rows = torch.where(groups.beams, groups.rows, len(logits)).long()  # those of no beam have a place of their own
        every = torch.nn.functional.pad(stuck, (0, 1), value=True)[rows].all(1, keepdim=True)
        stuck = stuck.new_zeros(len(logits) + 1).scatter(0, rows.flatten(), every.expand_as(rows).flatten())[:-1]
    return torch.where(stuck[:, None] & allow, 0.0, logits)


def _cleaned(logits: Tensor, clean: Tensor) -> Tensor:
    return torch.where(clean, logits.nan_to_num(nan=0.0), logits)


def _ending(logits: Tensor, ends: Tensor, length: Tensor, start: Tensor, factor: Tensor) -> Tensor:
    """Lets ends [R, n] gain factor ** (tokens since the start) - 1 times their own size."""
    wide = torch.nn.functional.pad(logits, (0, 1))
    own, since = wide.gather(1, ends), (length - start).clamp(min=0)
    gain = own.abs() * (factor**since - 1).float()
    return wide.scatter(1, ends, torch.where(own.isfinite(), own + gain, own))[:, :-1]
