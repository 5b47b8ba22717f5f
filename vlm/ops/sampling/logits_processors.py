"""What a request forbids, discourages or favours, applied to its logits in the order of Hugging Face's processors.

Biases of sequences, penalties, repeated n-grams, early ends, bad words, several forced ends (`penalize`), invalid
values, ends that get likelier, and at last suppressed tokens. Hugging Face's normalization behind all of them is a
beam search's (`beam_search`): no other choice sees it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vlm.ops.sampling.penalize import inside, penalize
from vlm.ops.state.beams import Groups
from vlm.ops.state.penalties import PenaltyState
from vlm.ops.state.sequences import SequenceState
from vlm.ops.state.token_rules import SUPPRESS, TokenRules, row_rules


@dataclass(frozen=True)
class Processing:
    """What a batch needs beyond penalties, n-grams and shortest lengths. Known to the host, part of a graph."""

    rules: tuple[int, ...] = ()  # kinds of rules about tokens
    cleans: bool = False  # invalid values become finite
    decays: bool = False  # ends get likelier
    normalizes: bool = False  # chances of some beams add up to 1 again, behind all else


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
    alters = processing.cleans or processing.decays
    last = {SUPPRESS} if alters else set()  # behind what alters scores
    scores = penalize(
        logits, state, penalties, slots=slots, rules=rules, kinds={*processing.rules} - last, groups=groups,
    )  # fmt: skip
    if not alters:
        return scores
    s = slots.long()
    if processing.cleans:
        scores = _cleaned(scores, penalties.clean[s][:, None])
    if processing.decays:
        ends, length = inside(state.stop_ids[s].long(), scores.shape[1]), state.lengths[s][:, None]
        scores = _ending(scores, ends, length, penalties.decay_starts[s][:, None], penalties.decay_factors[s][:, None])
    if rules is None or SUPPRESS not in processing.rules:
        return scores
    return scores.masked_fill(row_rules(rules, state, s, scores.shape[1]).marked(SUPPRESS), float("-inf"))


def _cleaned(logits: Tensor, clean: Tensor) -> Tensor:
    return torch.where(clean, logits.nan_to_num(nan=0.0), logits)


def _ending(logits: Tensor, ends: Tensor, length: Tensor, start: Tensor, factor: Tensor) -> Tensor:
    """Lets ends [R, n] gain factor ** (tokens since the start) - 1 times their own size."""
    wide = torch.nn.functional.pad(logits, (0, 1))
    own, since = wide.gather(1, ends), (length - start).clamp(min=0)
    gain = own.abs() * (factor**since - 1).float()
    return wide.scatter(1, ends, torch.where(own.isfinite(), own + gain, own))[:, :-1]
