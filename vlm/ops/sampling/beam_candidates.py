"""The best continuations of each group of beams: what a step of beam search takes its pick of."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vlm.ops.sampling.topk_logprobs import topk_logprobs
from vlm.ops.state.beams import BeamState, Groups, RowScores
from vlm.ops.state.sequences import SequenceState


@dataclass(frozen=True)
class Candidates:
    """The best continuations of each group, best first. [G, K]"""

    scores: Tensor  # float32, sum of log-probabilities, -inf where there is none
    ranked: Tensor  # float32, what they are chosen by: the score less the price of being alike
    parents: Tensor  # int64, the beam each continues
    tokens: Tensor  # int64
    logprobs: Tensor  # float32, of the token alone


def num_candidates(state: SequenceState, groups: Groups, stops: Tensor | None = None) -> Tensor:
    """Counts the candidates of each group, [G]: max(2, 1 + end tokens) · width, and one more for each of the tokens
    `stops` [R, V] bool of its rows."""
    exist, leaders = groups.beams, groups.slots[:, 0].long()
    count = exist.sum(1) * (1 + (state.stop_ids[leaders] >= 0).sum(1)).clamp(min=2)
    return count if stops is None else count + (stops.sum(1)[groups.rows.long()] * exist).sum(1)


def best_of_all(logprobs: Tensor, state: SequenceState, beams: BeamState, groups: Groups) -> Candidates:
    """Takes the best of all tokens of all beams by log-probabilities [R, V], as many as `most` of groups of one size.
    They lie as in Hugging Face's search: equal ones fall alike."""
    slots, rows, vocab_size = groups.slots.long(), groups.rows.long(), logprobs.shape[1]
    scores, must = beams.scores[slots], _forced(state, slots)
    # index_select copies rows as they lie: six times as fast as indexing
    total = logprobs.index_select(0, rows.flatten()).unflatten(0, rows.shape).add_(scores[..., None])
    forced = must >= 0
    if forced.any():
        total[forced] = float("-inf")
        total[forced, must[forced]] = scores[forced]
    ranked = _priced(total, beams.diversity[slots[:, :1, None]], groups.most).flatten(1)
    ranked, order = ranked.topk(min(groups.most, ranked.shape[1]), dim=-1)
    parents, tokens = order // vocab_size, order % vocab_size
    own = logprobs[rows.gather(1, parents), tokens].masked_fill(forced.gather(1, parents), 0.0)
    return Candidates(total.flatten(1).gather(1, order), ranked, parents, tokens, own)


def _priced(total: Tensor, diversity: Tensor, most: int) -> Tensor:
    """Lowers each score [G, W, V] by what its rank among its siblings costs where there is diversity [G, 1, 1]; those
    that are not among the `most` best of a beam are not among those of its group."""
    if not diversity.any():
        return total
    best, token = total.topk(min(most, total.shape[2]), dim=-1)
    priced = best - diversity * torch.arange(best.shape[2])
    return torch.where(diversity > 0, torch.full_like(total, float("-inf")).scatter(2, token, priced), total)


def best_of_likeliest(
    row_scores: RowScores, state: SequenceState, beams: BeamState, groups: Groups, stops: Tensor | None
) -> Candidates:
    """Takes the best of each beam's likeliest tokens: as many as `num_candidates` says, in sizes that do not follow
    from what is on the device."""
    exist, slots, rows = groups.beams, groups.slots.long(), groups.rows.long()
    keep = num_candidates(state, groups, stops)
    most = min(row_scores.values.shape[1], groups.most)  # of a beam
    count = min(slots.shape[1] * most, groups.most)  # of a group
    best, token, logsumexp = topk_logprobs(row_scores.values, most)  # of a row: what is added to it is the same for all
    best = best - row_scores.normalizer(logsumexp)[:, None]
    rank, must = torch.arange(most, device=best.device), _forced(state, slots)[..., None]
    best = torch.where(must >= 0, torch.where(rank == 0, 0.0, float("-inf")), best[rows])
    token = torch.where(must >= 0, must, token[rows])
    total = (best + beams.scores[slots][..., None]).masked_fill(~exist[..., None], float("-inf"))
    ranked = total - beams.diversity[slots[:, :1, None]] * rank
    ranked, order = ranked.flatten(1).topk(count, dim=-1)
    pick = lambda x: x.flatten(1).gather(1, order)  # noqa: E731
    none = torch.arange(count, device=best.device) >= keep[:, None]
    scores, ranked = (x.masked_fill(none, float("-inf")) for x in (pick(total), ranked))
    return Candidates(scores, ranked, order // most, pick(token), pick(best))


def _forced(state: SequenceState, slots: Tensor) -> Tensor:
    """Returns the token that each beam [G, W] must take, -1: any."""
    length = state.lengths[slots[:, :1]]
    first = torch.where(length == 1, state.forced_bos[slots], -1)
    last = torch.where(length + 1 == state.max_lengths[slots], state.forced_eos[slots], -1)
    return torch.where(last >= 0, last, first)
