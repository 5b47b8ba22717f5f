"""What a row's own tokens cost it: penalties, n-grams that must not come again, and ends that must not come yet.

Penalties: Keskar et al., CTRL (arXiv:1909.05858) for `repetition`, over prompt and output as Hugging Face has it;
`presence` and `frequency` as OpenAI's API has them, over the output alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vlm.ops.sequence_state import SequenceState
from vlm.ops.token_rules import BAN, SUPPRESS, TokenRules, row_rules

NGRAM = 8  # n-grams up to this size are looked for in any case


@dataclass(frozen=True)
class PenaltyState:
    """Per slot; `S` slots."""

    repetition: Tensor  # [S] float32, 1: off
    presence: Tensor  # [S] float32, 0: off
    frequency: Tensor  # [S] float32, 0: off
    min_lengths: Tensor  # [S] int32: no end or stop token before so many tokens are there
    ngrams: Tensor  # [S] int32: n-grams of this size must not repeat, 0: off
    input_repetition: Tensor  # [S] float32: `repetition` over the input's tokens, 1: off
    decay_starts: Tensor  # [S] int32: tokens after which ends get likelier,
    decay_factors: Tensor  # [S] float64: by this factor each, 1: off
    clean: Tensor  # [S] bool: NaN and infinite values become finite
    normalize: Tensor  # [S] bool: probabilities add up to 1 again

    @classmethod
    def empty(cls, size: int, device: torch.device) -> PenaltyState:
        ints = lambda: torch.zeros(size, dtype=torch.int32, device=device)  # noqa: E731
        floats = lambda: torch.zeros(size, device=device)  # noqa: E731
        flags = lambda: torch.zeros(size, dtype=torch.bool, device=device)  # noqa: E731
        return cls(
            floats() + 1, floats(), floats(), ints(), ints(), floats() + 1, ints(), floats().double() + 1, flags(),
            flags(),
        )  # fmt: skip


def reference(
    logits: Tensor,
    state: SequenceState,
    penalties: PenaltyState,
    slots: Tensor,
    *,
    longest: int = NGRAM,
    bans: TokenRules | None = None,
) -> Tensor:
    s, logits = slots.long(), logits.float()
    # rows of a prompt table have no logits: they count in the column of what is not forbidden
    history, length = state.tokens[s].long().clamp(max=logits.shape[1]), state.lengths[s][:, None]
    logits = _penalized(logits, history, length, state.prompt_lengths[s][:, None], penalties, s)
    ends = inside(state.stop_ids[s].long(), logits.shape[1])
    forbidden = torch.zeros(len(s), logits.shape[1] + 1, dtype=torch.bool, device=logits.device)
    nothing = logits.shape[1]  # a column of its own takes what is not forbidden
    for ids, holds in (
        _repeating_ngrams(history, length, penalties.ngrams[s][:, None], longest),
        (ends, (length < penalties.min_lengths[s][:, None]).expand_as(ends)),
    ):
        forbidden.scatter_(1, torch.where(holds, ids, nothing), True)
    forbidden = forbidden[:, :-1]
    if bans is not None:
        rules = row_rules(bans, state, s, logits.shape[1])
        forbidden = forbidden | rules.marked(BAN) | rules.marked(SUPPRESS)
    return logits.masked_fill(forbidden, float("-inf"))


def penalize(
    logits: Tensor,
    state: SequenceState,
    penalties: PenaltyState,
    slots: Tensor,
    *,
    longest: int = NGRAM,
    bans: TokenRules | None = None,
) -> Tensor:
    """Takes logits [R, V] of the rows `slots` [R] int32 -> float32 [R, V], with what is forbidden at -inf; `longest`:
    the size of the longest n-gram that must not come again; `bans`: rules, of which those that forbid a token hold."""
    if logits.is_cuda:
        from vlm.ops.kernels.penalize import penalize as kernel

        return kernel(logits, state, penalties, slots, bans)
    return reference(logits, state, penalties, slots, longest=longest, bans=bans)


def inside(ids: Tensor, vocab_size: int) -> Tensor:
    """Gives ids that are none of the vocabulary the column after it."""
    return torch.where((ids >= 0) & (ids < vocab_size), ids, vocab_size)


def _penalized(
    logits: Tensor, history: Tensor, length: Tensor, prompt: Tensor, penalties: PenaltyState, s: Tensor
) -> Tensor:
    at = torch.arange(history.shape[1], device=logits.device)
    none = logits.new_zeros(len(logits), logits.shape[1] + 1)
    count = lambda mask: none.scatter_add(1, history, mask.float())[:, :-1]  # noqa: E731
    present = count(at < length) > 0
    output = count((at < length) & (at >= prompt))
    repetition = penalties.repetition[s][:, None]
    logits = torch.where(present, torch.where(logits > 0, logits / repetition, logits * repetition), logits)
    logits = logits - penalties.presence[s][:, None] * (output > 0)
    return logits - penalties.frequency[s][:, None] * output


def _repeating_ngrams(history: Tensor, length: Tensor, n: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """Returns candidates [R, T], the token after each earlier place, and whether the n - 1 tokens before it end the
    history."""
    width = history.shape[1]
    at = torch.arange(width, device=history.device)[None]
    holds = (n > 0) & (at < length) & (at >= n - 1)
    for back in range(1, longest):
        earlier = history.gather(1, (at - back).clamp(min=0).expand(len(history), -1))
        tail = history.gather(1, (length - back).clamp(min=0).long())
        holds = holds & ((earlier == tail) | (back >= n))
    return history, holds
