"""One step of beam search for groups of slots, each with its own width and settings, without the host.

The maths is that of Hugging Face's vectorized beam search, group by group: candidates are the best of all beams, those
that end are hypotheses if they are among the first `width`, the best others run on. A group's result does not depend on
what else is in the batch. Diversity: Li, Monroe and Jurafsky (arXiv:1611.08562), a rank's cost among siblings.

Which of several equal scores `torch.topk` takes depends on how many it is to take of how many. So a CPU, which may ask
for sizes, takes groups of one size at a time, each with the numbers that it has alone and in Hugging Face's search. The
kernels take equal scores in the order of their index, whatever the sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vlm.ops.layouts.paged_kv import KVCache
from vlm.ops.sampling.beam_candidates import Candidates, best_of_all, best_of_likeliest, num_candidates
from vlm.ops.state.beams import NONE, BeamState, EarlyStopping, Groups, RowScores
from vlm.ops.state.sequences import SequenceState
from vlm.requests.finish import LENGTH, RUNNING

KERNEL_CANDIDATES = 256  # of a group, up to which a step is a kernel: more come of long lists of end tokens


def step(
    row_scores: RowScores, state: SequenceState, beams: BeamState, groups: Groups, stops: Tensor | None = None
) -> Tensor:
    """Takes every running group one token further, in place; returns the parents [G, W] of its beams, by which the
    key/value cache follows. `stops` [R, V] bool: tokens that end a beam as its end tokens do."""
    values = row_scores.values
    if values.is_cuda and stops is None and groups.most <= min(values.shape[1], KERNEL_CANDIDATES):
        from vlm.ops.kernels.beam_search import step as kernel

        return kernel(row_scores, state, beams, groups)
    return reference_step(row_scores, state, beams, groups, stops)


def reference_step(
    row_scores: RowScores, state: SequenceState, beams: BeamState, groups: Groups, stops: Tensor | None = None
) -> Tensor:
    if row_scores.values.is_cuda:  # a graph, whose sizes are those of the widest
        return _step(best_of_likeliest(row_scores, state, beams, groups, stops), state, beams, groups, stops)
    logprobs = row_scores.log_probabilities
    runs = groups.beams[:, 0] & (state.finish[groups.slots[:, 0].long()] == RUNNING)
    parents = torch.arange(groups.slots.shape[1]).repeat(len(runs), 1)
    for chosen, alike in groups.of_one_size(runs, num_candidates(state, groups, stops)):
        continuations = best_of_all(logprobs, state, beams, alike)
        parents[chosen, : alike.slots.shape[1]] = _step(continuations, state, beams, alike, stops)
    return parents


def _step(
    continuations: Candidates, state: SequenceState, beams: BeamState, groups: Groups, stops: Tensor | None
) -> Tensor:
    slots, exist = groups.slots.long(), groups.beams
    leaders = slots[:, 0]
    alive = (state.finish[leaders] == RUNNING)[:, None]
    length, limit = state.lengths[leaders][:, None], state.max_lengths[leaders][:, None]
    there = continuations.scores > NONE / 2  # of a beam that exists: at first there is one alone
    ends = (state.stop_ids[leaders][:, None] == continuations.tokens[..., None]).any(-1) | (length + 1 >= limit)
    if stops is not None:
        ends = ends | stops[groups.rows.long().gather(1, continuations.parents), continuations.tokens]

    histories = _Histories(state.tokens[slots], state.logprobs[slots])
    new = histories.continued(continuations, length)
    choice = (continuations.ranked + ends * NONE).topk(slots.shape[1], dim=-1).indices
    _update_hypotheses(continuations, ends & there, new, state=state, beams=beams, groups=groups, alive=alive)

    parents = torch.where(
        alive & exist, continuations.parents.gather(1, choice), torch.arange(slots.shape[1], device=slots.device)
    )
    put = lambda target, values: _put(target, slots, values, alive & exist)  # noqa: E731
    put(state.tokens, new.tokens.gather(1, _expand_index(choice, new.tokens)))
    put(state.logprobs, new.logprobs.gather(1, _expand_index(choice, new.logprobs)))
    put(beams.scores, (continuations.scores + ends * NONE).gather(1, choice))
    put(state.lengths, (length + 1).expand_as(slots))
    _decide(ends | ~there, state, beams, groups, alive)
    return parents


@dataclass(frozen=True)
class _Histories:
    tokens: Tensor  # [G, n, max_seq_len] int32
    logprobs: Tensor  # [G, n, max_seq_len] float32

    def continued(self, continuations: Candidates, length: Tensor) -> _Histories:
        """Returns each candidate's history with its token at `length` [G, 1]."""
        at = length.long().clamp(max=self.tokens.shape[2] - 1)[..., None].expand(-1, continuations.tokens.shape[1], -1)
        pick = lambda x: x.gather(1, _expand_index(continuations.parents, x))  # noqa: E731
        return _Histories(
            pick(self.tokens).scatter(2, at, continuations.tokens.int()[..., None]),
            pick(self.logprobs).scatter(2, at, continuations.logprobs[..., None]),
        )


def _update_hypotheses(
    continuations: Candidates,
    ends: Tensor,
    new: _Histories,
    *,
    state: SequenceState,
    beams: BeamState,
    groups: Groups,
    alive: Tensor,
) -> None:
    """Keeps the best of the old hypotheses and of the candidates that end now."""
    slots, exist = groups.slots.long(), groups.beams
    leaders = slots[:, 0]
    width, count = exist.sum(1, keepdim=True), continuations.tokens.shape[1]
    ended = beams.ended[slots]
    just = ends & (torch.arange(count, device=slots.device) < width)
    num_generated = _generated(state, leaders) + 1
    scores = continuations.scores / num_generated ** beams.length_penalty[leaders][:, None]
    full = (ended | ~exist).all(1, keepdim=True) & (beams.early_stopping[leaders][:, None] == EarlyStopping.WHEN_FULL)
    scores = scores + full * NONE
    scores = scores + ~beams.can_improve[leaders][:, None] * NONE
    scores = scores + ~just * NONE
    old = beams.hypothesis_scores[slots].masked_fill(~exist, float("-inf"))
    scores, best = torch.cat([old, scores], 1).topk(slots.shape[1], dim=-1)

    both = lambda a, b: torch.cat([a, b], 1).gather(1, _expand_index(best, a) if a.ndim == 3 else best)  # noqa: E731
    lengths = (state.lengths[leaders][:, None] + 1).expand(-1, count)
    put = lambda target, values: _put(target, slots, values, alive & exist)  # noqa: E731
    put(beams.hypotheses, both(beams.hypotheses[slots], new.tokens))
    put(beams.hypothesis_logprobs, both(beams.hypothesis_logprobs[slots], new.logprobs))
    put(beams.hypothesis_lengths, both(beams.hypothesis_lengths[slots], lengths))
    put(beams.ended, both(ended, just))
    put(beams.hypothesis_scores, scores)


def _decide(ends: Tensor, state: SequenceState, beams: BeamState, groups: Groups, alive: Tensor) -> None:
    """Decides whether a group goes on: a running beam can still improve on the hypotheses. Lengths are the new ones."""
    slots, exist = groups.slots.long(), groups.beams
    leaders = slots[:, 0]
    early, penalty = beams.early_stopping[leaders][:, None], beams.length_penalty[leaders][:, None]
    longest = (state.max_lengths[leaders] - state.prompt_lengths[leaders])[:, None]
    length = torch.where((early == EarlyStopping.NEVER) & (penalty > 0), longest, _generated(state, leaders))
    best_running = beams.scores[leaders][:, None] / length**penalty
    ended, scores = beams.ended[slots], beams.hypothesis_scores[slots]
    worst = torch.where(ended, scores.masked_fill(~exist, float("inf")).amin(1, keepdim=True), NONE)
    better = ((best_running > worst) & exist).any(1, keepdim=True)
    can_improve = beams.can_improve[leaders][:, None] & better
    full = (ended | ~exist).all(1, keepdim=True) & (early == EarlyStopping.WHEN_FULL)
    goes_on = can_improve & ~full & ~ends.all(1, keepdim=True)
    _put(beams.can_improve, leaders[:, None], can_improve, alive)
    _put(state.finish, slots, torch.where(goes_on, RUNNING, LENGTH).expand_as(slots), alive & exist)


def _generated(state: SequenceState, leaders: Tensor) -> Tensor:
    """Counts the tokens after the prompt, [G, 1]."""
    return (state.lengths[leaders] - state.prompt_lengths[leaders])[:, None]


def _expand_index(index: Tensor, like: Tensor) -> Tensor:
    """Expands [G, n] to [G, n, T]."""
    return index[..., None].expand(-1, -1, like.shape[2])


def _put(target: Tensor, slots: Tensor, values: Tensor, where: Tensor) -> None:
    """Writes target[slots] = values, but for beams that are none or have ended: these keep what they have."""
    where = where.expand(slots.shape)
    where = where if values.ndim == 2 else where[..., None]
    target[slots] = torch.where(where, values.to(target.dtype), target[slots])


def reorder_cache(
    cache: KVCache, tables: Tensor, state: SequenceState, beams: BeamState, groups: Groups, parents: Tensor
) -> None:
    """Makes every beam's block table that of its parent: whole blocks are shared, the last partial one is copied.

    A copy goes to the beam's spare block, and the block it had becomes the spare one: what is read in this step is
    never written in it. tables [S, n] int32; parents [G, W] from `step`
    """
    sources, targets = _update_tables(tables, cache.block_size, state, beams, groups, parents)
    copy_blocks(cache.blocks, sources, targets)


def _update_tables(
    tables: Tensor, size: int, state: SequenceState, beams: BeamState, groups: Groups, parents: Tensor
) -> tuple[Tensor, Tensor]:
    """Brings the tables up to date -> the blocks to copy and where to, [G · W] int32 each; equal: none."""
    if tables.is_cuda:
        from vlm.ops.kernels.beam_search import reorder_cache as kernel

        return kernel(tables, size, state, beams, groups, parents)
    return reference_reorder_cache(tables, size, state, beams, groups, parents)


def reference_reorder_cache(
    tables: Tensor, size: int, state: SequenceState, beams: BeamState, groups: Groups, parents: Tensor
) -> tuple[Tensor, Tensor]:
    slots = groups.slots.long()
    num_cached = (state.lengths[slots] - 1)[..., None]  # tokens in the cache
    column = torch.arange(tables.shape[1], device=tables.device)
    theirs = tables[slots].gather(1, _expand_index(parents, tables[slots]))
    own = tables[slots]
    moves = parents != torch.arange(slots.shape[1], device=slots.device)
    last = (num_cached[..., 0] // size).clamp(max=tables.shape[1] - 1).long()[..., None]
    partial = moves & (num_cached[..., 0] % size > 0)
    source, spare = theirs.gather(2, last)[..., 0], beams.spare_blocks[slots]
    blocks = torch.where(moves[..., None] & (column < num_cached // size), theirs, own)
    blocks = torch.where(partial[..., None] & (column == last), spare[..., None], blocks)
    beams.spare_blocks[slots] = torch.where(partial, own.gather(2, last)[..., 0], spare)
    tables[slots] = blocks
    return torch.where(partial, source, 0).flatten(), torch.where(partial, spare, 0).flatten()


def copy_blocks(cache: Tensor, sources: Tensor, targets: Tensor) -> None:
    """Copies cache[:, :, targets] = cache[:, :, sources] for [N] int32 pairs; equal ones cost nothing."""
    if cache.is_cuda:
        from vlm.ops.kernels.copy_blocks import copy_blocks as kernel

        kernel(cache, sources, targets)
    else:
        apart = (sources != targets).nonzero()[:, 0]
        cache[:, :, targets[apart].long()] = cache[:, :, sources[apart].long()]
