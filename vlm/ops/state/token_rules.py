"""Rules about single tokens and about sequences of them, of all requests in one table: what they forbid, force, favour,
and what ends a beam.

A rule names a token and those that must stand before it. The table is flat: its size follows from what the requests
say, not from the number of slots times the longest list.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from vlm.ops.state.sequences import SequenceState

# add a value; stands in the input; never; one of these, all alike; never, at last; ends a beam; one of these
BIAS, SEEN, BAN, FORCE, SUPPRESS, END, ALLOW = range(7)


def acting(kinds: Collection[int]) -> set[int]:
    """Returns those of the kinds that change scores."""
    return {*kinds} - {END}


@dataclass(frozen=True)
class TokenRules:
    """`E` rules and the `P` tokens that must stand before theirs. Unused ones name token -1."""

    slots: Tensor  # [E] int32
    tokens: Tensor  # [E] int32: the token that a rule is about
    kinds: Tensor  # [E] int32
    places: Tensor  # [E] int32: the only length of the history at which it holds, -1: any
    values: Tensor  # [E] float32
    first_prefixes: Tensor  # [E] int32: where the tokens before a rule's lie among all, side by side,
    num_prefixes: Tensor  # [E] int32: and how many they are
    prefix_rules: Tensor  # [P] int32: whose token this is, `E` where it is unused
    prefix_backs: Tensor  # [P] int32: how far before the rule's token
    prefix_tokens: Tensor  # [P] int32


@dataclass(frozen=True)
class RowRules:
    """The rules that hold now, over the `R` rows of a batch and its vocabulary."""

    rules: TokenRules
    places: Tensor  # [E] int64: of a rule's token in a flat [R + 1, V + 1]; the last one where it does not hold
    shape: tuple[int, int]  # R, V

    def marked(self, kind: int) -> Tensor:
        """Marks the tokens of a kind: [R, V] bool"""
        marks = self._flat(torch.bool)
        return self._rows(marks.scatter_(0, self._of(kind), True))

    def bias(self) -> Tensor:
        """Sums the biases of the tokens: [R, V] float32"""
        return self._rows(self._flat(torch.float32).scatter_add_(0, self._of(BIAS), self.rules.values))

    def _of(self, kind: int) -> Tensor:
        return torch.where(self.rules.kinds == kind, self.places, self._size - 1)

    @property
    def _size(self) -> int:
        return (self.shape[0] + 1) * (self.shape[1] + 1)

    def _flat(self, dtype: torch.dtype) -> Tensor:
        return torch.zeros(self._size, dtype=dtype, device=self.places.device)

    def _rows(self, flat: Tensor) -> Tensor:
        return flat.view(self.shape[0] + 1, self.shape[1] + 1)[:-1, :-1]


def row_rules(rules: TokenRules, state: SequenceState, slots: Tensor, vocab_size: int) -> RowRules:
    """Finds the rules that hold for the rows `slots` [R] int64."""
    rows = torch.full_like(state.lengths, len(slots)).scatter_(0, slots, torch.arange(
        len(slots), dtype=torch.int32, device=slots.device))  # fmt: skip
    row, token = rows[rules.slots.long()].long(), rules.tokens.long()
    holds = _hold(rules, state) & (token >= 0) & (token < vocab_size) & (row < len(slots))
    nowhere = (len(slots) + 1) * (vocab_size + 1) - 1
    return RowRules(rules, torch.where(holds, row * (vocab_size + 1) + token, nowhere), (len(slots), vocab_size))


def _hold(rules: TokenRules, state: SequenceState) -> Tensor:
    """Returns [E] bool: the history ends in what must stand before the token, at the place that was named"""
    count = len(rules.slots)
    rule = rules.prefix_rules.long()
    slot = rules.slots.long()[rule.clamp(max=count - 1)]
    at = state.lengths[slot] - rules.prefix_backs
    ends = rules.kinds[rule.clamp(max=count - 1)] == END
    first = torch.where(ends, state.prompt_lengths[slot], 0)  # what was generated ends a beam, no prompt does
    stands = (at >= first) & (state.tokens[slot, at.clamp(min=0).long()] == rules.prefix_tokens)
    missing = torch.zeros(count + 1, dtype=torch.int32, device=slot.device).index_add_(0, rule, (~stands).int())
    here = (rules.places < 0) | (rules.places == state.lengths[rules.slots.long()])
    return here & (missing[:-1] == 0)
