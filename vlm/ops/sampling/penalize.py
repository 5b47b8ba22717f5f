"""What a row's own tokens cost it, and what rules say about tokens: biases, penalties, n-grams that must not come
again, ends that must not come yet, tokens that are forbidden, allowed or forced.

Penalties: Keskar et al., CTRL (arXiv:1909.05858) for `repetition`, over prompt and output as Hugging Face has it;
`presence` and `frequency` as OpenAI's API has them, over the output alone.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from vlm.ops.sampling.apply_rules import NEVER, favoured, restricted
from vlm.ops.state.beams import Groups
from vlm.ops.state.penalties import PenaltyState
from vlm.ops.state.sequences import SequenceState
from vlm.ops.state.token_rules import TokenRules, acting, row_rules


def reference(
    logits: Tensor,
    state: SequenceState,
    penalties: PenaltyState,
    *,
    slots: Tensor,
    rules: TokenRules | None = None,
    kinds: Collection[int] = (),
    groups: Groups | None = None,
) -> Tensor:
    scores, s = logits.float() if groups is None else logits.float().log_softmax(-1), slots.long()
    if rules is None or not acting(kinds):
        return _penalties(scores, state, penalties, s)
    of_rows = row_rules(rules, state, s, logits.shape[1])
    scores = favoured(scores, of_rows, kinds, penalties.input_repetition[s][:, None])
    scores = _penalties(scores, state, penalties, s)
    return restricted(scores, of_rows, kinds, groups)


def penalize(
    logits: Tensor,
    state: SequenceState,
    penalties: PenaltyState,
    *,
    slots: Tensor,
    rules: TokenRules | None = None,
    kinds: Collection[int] = (),
    groups: Groups | None = None,
) -> Tensor:
    """Takes logits [R, V] of the rows `slots` [R] int32 -> float32 [R, V], with what is forbidden at -inf; `kinds`:
    of rules, those that hold; `groups`: the rows are beams of searches, whose log-probabilities are penalized as in
    Hugging Face's."""
    if logits.is_cuda:
        from vlm.ops.kernels.penalize import penalize as kernel

        return kernel(logits, state, penalties, slots=slots, rules=rules, kinds=kinds, groups=groups)
    return reference(logits, state, penalties, slots=slots, rules=rules, kinds=kinds, groups=groups)


def inside(ids: Tensor, vocab_size: int) -> Tensor:
    """Gives ids that are none of the vocabulary the column after it."""
    return torch.where((ids >= 0) & (ids < vocab_size), ids, vocab_size)


def _penalties(scores: Tensor, state: SequenceState, penalties: PenaltyState, s: Tensor) -> Tensor:
    """Penalizes scores [R, V] float32 of the rows `s` [R] int64 by their own tokens."""
    nothing = scores.shape[1]  # a column of its own is where what has no score lies
    scores = torch.nn.functional.pad(scores, (0, 1))
    at, length = torch.arange(state.tokens.shape[1], device=s.device), state.lengths[s][:, None]
    tokens = state.tokens[s].long()
    history = torch.where(at < length, tokens.clamp(max=nothing), nothing)  # rows of a prompt table have no scores
    is_output = at >= state.prompt_lengths[s][:, None]
    scores.scatter_(1, history, _penalized(scores.gather(1, history), history, is_output, nothing, penalties, s))
    ends = inside(state.stop_ids[s].long(), nothing)
    for ids, holds in (
        (history, _repeats(tokens, length, penalties.ngrams[s][:, None])),
        (ends, (length < penalties.min_lengths[s][:, None]).expand_as(ends)),
    ):
        scores.scatter_(1, torch.where(holds, ids, nothing), NEVER)
    return scores[:, :-1]


def _penalized(
    scores: Tensor, history: Tensor, is_output: Tensor, nothing: int, penalties: PenaltyState, s: Tensor
) -> Tensor:
    """Returns what becomes of the `scores` [R, T] of a history's tokens [R, T]."""
    of = lambda values: values[s][:, None]  # noqa: E731
    zeros = scores.new_zeros(len(s), nothing + 1)
    count = zeros.scatter_add(1, torch.where(is_output, history, nothing), torch.ones_like(scores)).gather(1, history)
    repetition = of(penalties.repetition)
    scores = torch.where(scores > 0, scores / repetition, scores * repetition)
    return scores - of(penalties.presence) * (count > 0) - of(penalties.frequency) * count


def _repeats(tokens: Tensor, length: Tensor, n: Tensor) -> Tensor:
    """Marks the tokens of a history [R, T] before which the n - 1 tokens stand that end it."""
    at = torch.arange(tokens.shape[1], device=tokens.device)[None]
    holds = (n > 0) & (at < length) & (at >= n - 1)
    for back in range(1, int(n.max())):
        earlier = tokens.gather(1, (at - back).clamp(min=0).expand(len(tokens), -1))
        tail = tokens.gather(1, (length - back).clamp(min=0).long())
        holds = holds & ((earlier == tail) | (back >= n))
    return holds
