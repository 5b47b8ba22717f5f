"""Appends a token that each row draws: the last operation of a decode step that samples."""

from __future__ import annotations

import torch
from torch import Tensor

from vlm.ops.sampling.append_and_check_stop import append_and_check_stop
from vlm.ops.sampling.sample import log_probability, sample
from vlm.ops.state.sampling import SamplingState
from vlm.ops.state.sequences import SequenceState


def reference(
    state: SequenceState,
    slots: Tensor,
    settings: SamplingState,
    *,
    all_slots: Tensor,
    scores: Tensor,
    logits: Tensor,
    by_entropy: int = 0,
) -> None:
    s = all_slots.long()
    token = sample(scores, settings.rows(s), state.lengths[s], by_entropy=by_entropy > 0)
    append_and_check_stop(state, slots, token, log_probability(logits, token))
    settings.after(s, state)


def append_sampled(
    state: SequenceState,
    slots: Tensor,
    settings: SamplingState,
    *,
    all_slots: Tensor,
    scores: Tensor,
    logits: Tensor,
    by_entropy: int = 0,
) -> None:
    """Appends a token drawn by scores[r] [V] to slot slots[r], with its log-probability under logits[r] [V]; all else
    as `append_and_check_stop`. Settings and places are those of all_slots[r], which is no padding where slots[r] is;
    `by_entropy`: so many rows at most have filters of vlm.ops.sampling.entropy_filters."""
    operation = by_kernels if logits.is_cuda else reference
    operation(state, slots, settings, all_slots=all_slots, scores=scores, logits=logits, by_entropy=by_entropy)


def by_kernels(
    state: SequenceState,
    slots: Tensor,
    settings: SamplingState,
    *,
    all_slots: Tensor,
    scores: Tensor,
    logits: Tensor,
    by_entropy: int = 0,
) -> None:
    from vlm.ops.kernels import append_sampled as kernels

    token, logprob = kernels.draw(state, settings, slots=all_slots, scores=scores, logits=logits)
    if by_entropy:
        # what others draw depends on no such neighbour: torch's logarithms differ in the last place
        s = all_slots.long()
        rows = settings.goes_by_entropy[s].int().argsort(descending=True, stable=True)[:by_entropy]
        how, logits = settings.rows(s[rows]), logits[rows]
        drawn = sample(scores[rows], how, state.lengths[s[rows]], by_entropy=True)
        token[rows] = torch.where(how.goes_by_entropy, drawn.int(), token[rows])
        logprob[rows] = torch.where(how.goes_by_entropy, log_probability(logits, drawn), logprob[rows])
    kernels.append(state, slots, settings, all_slots=all_slots, token=token, logprob=logprob)
