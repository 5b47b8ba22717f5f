"""What rules about tokens make of scores, before penalties and after them: see `vlm.ops.state.token_rules`."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from vlm.ops.state.beams import Groups
from vlm.ops.state.token_rules import ALLOW, BAN, BIAS, FORCE, SEEN, SUPPRESS, RowRules

NEVER = float("-inf")


def favoured(scores: Tensor, rules: RowRules, kinds: Collection[int], repetition: Tensor) -> Tensor:
    """Adds biases to scores [R, V], and weighs what stands in the input by `repetition` [R, 1]."""
    if BIAS in kinds:
        scores = scores + rules.bias()
    if SEEN in kinds:
        weighed = torch.where(scores < 0, scores / repetition, scores * repetition)
        scores = torch.where(rules.marked(SEEN), weighed, scores)
    return scores


def restricted(scores: Tensor, rules: RowRules, kinds: Collection[int], groups: Groups | None) -> Tensor:
    """Forbids in scores [R, V] bad words, all but what is allowed, where one of several ends must come all but these,
    whose scores become alike, and at last what never comes."""
    if BAN in kinds:
        scores = scores.masked_fill(rules.marked(BAN), NEVER)
    if ALLOW in kinds:
        scores = _allowed(scores, rules.marked(ALLOW), groups)
    if FORCE in kinds:
        force = rules.marked(FORCE)
        scores = torch.where(force.any(1, keepdim=True), torch.where(force, 0.0, NEVER), scores)
    if SUPPRESS in kinds:
        scores = scores.masked_fill(rules.marked(SUPPRESS), NEVER)
    return scores


def _allowed(scores: Tensor, allow: Tensor, groups: Groups | None) -> Tensor:
    """Forbids all but the tokens `allow` [R, V] bool of rows that have some; where nothing else is left of a row, or of
    all beams of a search, these may come again, with scores that are alike."""
    scores = scores.masked_fill(allow.any(1, keepdim=True) & ~allow, NEVER)
    stuck = scores.amax(1) == NEVER
    stuck = stuck if groups is None else groups.all_of(stuck)
    return torch.where(stuck[:, None] & allow, 0.0, scores)
