"""A step of beam search in three kernels: choose (a program a group), move the histories, reorder the block tables.

The same maths as `vlm.ops.sampling.beam_search`, whose names these are; equal scores are taken in the order of their
index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.jit import jit

if TYPE_CHECKING:
    from vlm.ops.state.beams import BeamState, Groups, RowScores
    from vlm.ops.state.sequences import SequenceState

TILE = 128  # columns of a history a program moves


@jit
def _take(values, index, at):
    """Returns values[at], of a vector with indices `index`."""
    return tl.sum(tl.where(index == at, values, 0))


@jit
def _choose(
    values_ptr, ids_ptr, norm_ptr, again_ptr, slots_ptr, rows_ptr,
    lengths_ptr, prompts_ptr, limits_ptr, finish_ptr, stops_ptr, first_ptr, last_ptr,
    scores_ptr, hypothesis_scores_ptr, hypothesis_lengths_ptr, ended_ptr, can_improve_ptr, penalty_ptr, early_ptr,
    diversity_ptr,
    alive_ptr, parents_ptr, tokens_ptr, logprobs_ptr, source_ptr, new_tokens_ptr, new_logprobs_ptr, padding_slot,
    W: tl.constexpr, K: tl.constexpr, STOPS: tl.constexpr, NORMALIZED: tl.constexpr, AGAIN: tl.constexpr,
    W_PAD: tl.constexpr, K_PAD: tl.constexpr, C_PAD: tl.constexpr,
):  # fmt: skip
    NONE = -1.0e9
    group = tl.program_id(0)
    leader = tl.load(slots_ptr + group * W)
    alive = (leader != padding_slot) & (tl.load(finish_ptr + leader) == 0)
    tl.store(alive_ptr + group, alive.to(tl.int32))
    w = tl.arange(0, W_PAD)
    if alive:
        slots = tl.load(slots_ptr + group * W + w, mask=w < W, other=padding_slot)
        exist = (w < W) & (slots != padding_slot)
        width = tl.sum(exist.to(tl.int32))
        length, limit = tl.load(lengths_ptr + leader), tl.load(limits_ptr + leader)
        prompt = tl.load(prompts_ptr + leader)
        first, last = tl.load(first_ptr + leader), tl.load(last_ptr + leader)
        must = tl.where((length == 1) & (first >= 0), first, -1)
        must = tl.where((length + 1 == limit) & (last >= 0), last, must)

        # every beam's best continuations
        c = tl.arange(0, C_PAD)
        beam, rank = c // K, c % K
        valid = c < W * K
        slot = tl.load(slots_ptr + group * W + beam, mask=valid, other=padding_slot)
        valid = valid & (slot != padding_slot)
        row = tl.load(rows_ptr + group * W + beam, mask=valid, other=0).to(tl.int64)
        own = tl.load(values_ptr + row * K + rank, mask=valid, other=-float("inf"))
        token = tl.load(ids_ptr + row * K + rank, mask=valid, other=0).to(tl.int32)
        if not NORMALIZED or AGAIN:
            normalizer = tl.load(norm_ptr + row, mask=valid, other=0.0)
            if AGAIN:  # nothing of a row of which nothing is left
                again = tl.load(again_ptr + row, mask=valid, other=False) & (tl.abs(normalizer) < float("inf"))
                normalizer = tl.where(again, normalizer, 0.0)
            own -= normalizer
        own = tl.where(must >= 0, tl.where(rank == 0, 0.0, -float("inf")), own)
        token = tl.where(must >= 0, must, token)
        total = tl.where(valid, own + tl.load(scores_ptr + slot, mask=valid, other=0.0), -float("inf"))
        ranked = total - tl.load(diversity_ptr + leader) * rank

        # the best of the group
        ends = 0
        for s in range(STOPS):
            ends += (tl.load(stops_ptr + leader * STOPS + s) >= 0).to(tl.int32)
        keep = width * tl.maximum(2, 1 + ends)
        k = tl.arange(0, K_PAD)
        best_total = tl.full([K_PAD], -float("inf"), tl.float32)
        best_ranked = tl.full([K_PAD], -float("inf"), tl.float32)
        best_own = tl.zeros([K_PAD], tl.float32)
        best_parent = tl.zeros([K_PAD], tl.int32)
        best_token = tl.zeros([K_PAD], tl.int32)
        for i in range(K):
            at = tl.argmax(ranked, 0)
            here = (k == i) & (i < keep)
            best_total = tl.where(here, _take(total, c, at), best_total)
            best_ranked = tl.where(here, tl.max(ranked), best_ranked)
            best_own = tl.where(here, _take(own, c, at), best_own)
            best_parent = tl.where(here, at // K, best_parent)
            best_token = tl.where(here, _take(token, c, at), best_token)
            ranked = tl.where(c == at, -float("inf"), ranked)
        there = best_total > NONE / 2
        stops = tl.full([K_PAD], 0, tl.int32) + (length + 1 >= limit).to(tl.int32)
        for s in range(STOPS):
            stop = tl.load(stops_ptr + leader * STOPS + s)
            stops += ((best_token == stop) & (stop >= 0)).to(tl.int32)
        ending = stops > 0

        # the old hypotheses and those that end now: the best stay
        early, penalty = tl.load(early_ptr + leader), tl.load(penalty_ptr + leader)
        can_improve = tl.load(can_improve_ptr + leader) != 0
        old_ended = tl.load(ended_ptr + slots, mask=exist, other=1) != 0
        old_lengths = tl.load(hypothesis_lengths_ptr + slots, mask=exist, other=0)
        old = tl.load(hypothesis_scores_ptr + slots, mask=exist, other=-float("inf"))
        full = (tl.min((old_ended | ~exist).to(tl.int32)) == 1) & (early == 1)
        just = ending & there & (k < width)
        num_generated = (length + 1 - prompt).to(tl.float32)
        new = best_total / tl.exp2(penalty * tl.log2(num_generated))
        new += tl.where(full, NONE, 0.0)
        new += tl.where(can_improve, 0.0, NONE)
        new += tl.where(just, 0.0, NONE)
        new = tl.where(k < K, new, -float("inf"))
        kept_scores = tl.zeros([W_PAD], tl.float32)
        kept_lengths = tl.zeros([W_PAD], tl.int32)
        kept_ended = tl.zeros([W_PAD], tl.int32)
        source = tl.zeros([W_PAD], tl.int32)
        kept_token = tl.zeros([W_PAD], tl.int32)
        kept_own = tl.zeros([W_PAD], tl.float32)
        for i in range(W):
            a, b = tl.max(old), tl.max(new)
            at_old, at_new = tl.argmax(old, 0), tl.argmax(new, 0)
            is_old = a >= b  # pyright: ignore[reportOperatorIssue]
            here = w == i
            kept_scores = tl.where(here, tl.maximum(a, b), kept_scores)
            kept_lengths = tl.where(here, tl.where(is_old, _take(old_lengths, w, at_old), length + 1), kept_lengths)
            from_old, from_new = _take(old_ended.to(tl.int32), w, at_old), _take(just.to(tl.int32), k, at_new)
            kept_ended = tl.where(here, tl.where(is_old, from_old, from_new), kept_ended)
            # below W: an old hypothesis; else the beam that it goes on from
            source = tl.where(here, tl.where(is_old, at_old, W + _take(best_parent, k, at_new)), source)
            kept_token = tl.where(here, _take(best_token, k, at_new), kept_token)
            kept_own = tl.where(here, _take(best_own, k, at_new), kept_own)
            old = tl.where(is_old, tl.where(w == at_old, -float("inf"), old), old)
            new = tl.where(is_old, new, tl.where(k == at_new, -float("inf"), new))

        # those that run on
        run = best_ranked + tl.where(ending, NONE, 0.0)
        run = tl.where(k < K, run, -float("inf"))
        score = tl.zeros([W_PAD], tl.float32)
        parent = tl.zeros([W_PAD], tl.int32)
        next_token = tl.zeros([W_PAD], tl.int32)
        next_own = tl.zeros([W_PAD], tl.float32)
        is_taken = tl.zeros([K_PAD], tl.int32)
        for i in range(W):
            # one that was taken must not be taken again, even where all that is left is -inf
            at = tl.argmax(tl.where(is_taken == 1, -float("inf"), tl.maximum(run, -3.0e38)), 0)
            here = w == i
            score = tl.where(here, _take(best_total + tl.where(ending, NONE, 0.0), k, at), score)
            parent = tl.where(here, _take(best_parent, k, at), parent)
            next_token = tl.where(here, _take(best_token, k, at), next_token)
            next_own = tl.where(here, _take(best_own, k, at), next_own)
            is_taken = tl.where(k == at, 1, is_taken)

        # does the group go on?
        longest = (limit - prompt).to(tl.float32)
        reach = tl.where((early == 2) & (penalty > 0), longest, num_generated)
        best_running = tl.max(tl.where(w == 0, score, -float("inf"))) / tl.exp2(penalty * tl.log2(reach))
        lowest = tl.min(tl.where(exist, kept_scores, float("inf")))
        worst = tl.where(kept_ended == 1, lowest, NONE)
        better = tl.max(((best_running > worst) & exist).to(tl.int32)) == 1
        can_improve = can_improve & better
        full = (tl.min(tl.where(exist, kept_ended, 1)) == 1) & (early == 1)
        at_end = tl.min((ending | ~there | (k >= K)).to(tl.int32)) == 1
        goes_on = can_improve & ~full & ~at_end

        tl.store(can_improve_ptr + leader, can_improve)
        tl.store(finish_ptr + slots, tl.where(goes_on, 0, 3) + tl.zeros([W_PAD], tl.int32), mask=exist)
        tl.store(lengths_ptr + slots, length + 1 + tl.zeros([W_PAD], tl.int32), mask=exist)
        tl.store(scores_ptr + slots, score, mask=exist)
        tl.store(hypothesis_scores_ptr + slots, kept_scores, mask=exist)
        tl.store(hypothesis_lengths_ptr + slots, kept_lengths, mask=exist)
        tl.store(ended_ptr + slots, kept_ended != 0, mask=exist)
        out = group * W + w
        tl.store(parents_ptr + out, tl.where(exist, parent, w), mask=w < W)
        tl.store(tokens_ptr + out, next_token, mask=w < W)
        tl.store(logprobs_ptr + out, next_own, mask=w < W)
        tl.store(source_ptr + out, source, mask=w < W)
        tl.store(new_tokens_ptr + out, kept_token, mask=w < W)
        tl.store(new_logprobs_ptr + out, kept_own, mask=w < W)
    else:
        tl.store(parents_ptr + group * W + w, w, mask=w < W)


@jit
def _move(
    slots_ptr, alive_ptr, lengths_ptr, parents_ptr, token_ptr, logprob_ptr, source_ptr, new_token_ptr, new_logprob_ptr,
    tokens_ptr, logprobs_ptr, hypotheses_ptr, hypothesis_logprobs_ptr, padding_slot, width,
    W: tl.constexpr, W_PAD: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(0)
    leader = tl.load(slots_ptr + group * W)
    at = tl.load(lengths_ptr + leader) - 1  # of the new token
    begin = tl.program_id(1) * TILE
    if (tl.load(alive_ptr + group) == 1) & (begin <= at):
        w, t = tl.arange(0, W_PAD), begin + tl.arange(0, TILE)
        inside = w < W
        slots = tl.load(slots_ptr + group * W + w, mask=inside, other=padding_slot)
        exist = inside & (slots != padding_slot)
        parents = tl.load(parents_ptr + group * W + w, mask=exist, other=0)
        source = tl.load(source_ptr + group * W + w, mask=exist, other=0)
        is_old = source < W
        origin = tl.load(slots_ptr + group * W + parents, mask=exist, other=padding_slot).to(tl.int64)
        base = tl.load(slots_ptr + group * W + source % W, mask=exist, other=padding_slot).to(tl.int64)
        mask = exist[:, None] & (t < width)[None, :]
        here = (t == at)[None, :]

        old = is_old[:, None]
        tokens = tl.load(tokens_ptr + origin[:, None] * width + t[None, :], mask=mask, other=0)
        logprobs = tl.load(logprobs_ptr + origin[:, None] * width + t[None, :], mask=mask, other=0.0)
        ended = tl.load(hypotheses_ptr + base[:, None] * width + t[None, :], mask=mask & old, other=0)
        ended_own = tl.load(hypothesis_logprobs_ptr + base[:, None] * width + t[None, :], mask=mask & old, other=0.0)
        now = tl.load(tokens_ptr + base[:, None] * width + t[None, :], mask=mask & ~old, other=0)
        now_own = tl.load(logprobs_ptr + base[:, None] * width + t[None, :], mask=mask & ~old, other=0.0)
        new_token = tl.load(new_token_ptr + group * W + w, mask=exist, other=0)
        new_own = tl.load(new_logprob_ptr + group * W + w, mask=exist, other=0.0)
        now = tl.where(here, new_token[:, None], now)
        now_own = tl.where(here, new_own[:, None], now_own)
        token = tl.load(token_ptr + group * W + w, mask=exist, other=0)
        own = tl.load(logprob_ptr + group * W + w, mask=exist, other=0.0)
        tokens = tl.where(here, token[:, None], tokens)
        logprobs = tl.where(here, own[:, None], logprobs)
        tl.debug_barrier()  # all is read before any of it is overwritten
        to = slots.to(tl.int64)[:, None] * width + t[None, :]
        tl.store(tokens_ptr + to, tokens, mask=mask)
        tl.store(logprobs_ptr + to, logprobs, mask=mask)
        tl.store(hypotheses_ptr + to, tl.where(old, ended, now), mask=mask)
        tl.store(hypothesis_logprobs_ptr + to, tl.where(old, ended_own, now_own), mask=mask)


@jit
def _reorder(
    slots_ptr, lengths_ptr, parents_ptr, tables_ptr, spare_blocks_ptr, sources_ptr, targets_ptr, padding_slot,
    columns, SIZE, W: tl.constexpr, W_PAD: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(0)
    w, n = tl.arange(0, W_PAD), tl.arange(0, COLUMNS)
    inside = w < W
    slots = tl.load(slots_ptr + group * W + w, mask=inside, other=padding_slot)
    exist = inside & (slots != padding_slot)
    parents = tl.load(parents_ptr + group * W + w, mask=inside, other=0)
    num_cached = tl.load(lengths_ptr + slots, mask=exist, other=1) - 1
    last = tl.minimum(num_cached // SIZE, columns - 1)
    moves = exist & (parents != w)
    partial = moves & (num_cached % SIZE > 0)
    origin = tl.load(slots_ptr + group * W + parents, mask=inside, other=padding_slot)
    mask = moves[:, None] & (n < columns)[None, :]
    theirs = tl.load(tables_ptr + origin[:, None] * columns + n[None, :], mask=mask, other=0)
    block = tl.load(tables_ptr + origin * columns + last, mask=partial, other=0)
    own = tl.load(tables_ptr + slots * columns + last, mask=partial, other=0)
    free = tl.load(spare_blocks_ptr + slots, mask=partial, other=0)
    tl.debug_barrier()  # all is read before any of it is overwritten
    whole = mask & (n[None, :] < (num_cached // SIZE)[:, None])
    tl.store(tables_ptr + slots[:, None] * columns + n[None, :], theirs, mask=whole)
    tl.store(tables_ptr + slots * columns + last, free, mask=partial)
    tl.store(spare_blocks_ptr + slots, own, mask=partial)
    tl.store(sources_ptr + group * W + w, block, mask=inside)
    tl.store(targets_ptr + group * W + w, free, mask=inside)


def step(row_scores: RowScores, state: SequenceState, beams: BeamState, groups: Groups) -> Tensor:
    from vlm.ops.kernels.topk_logprobs import topk_logprobs

    logits, again = row_scores.values, row_scores.again
    count, width = groups.slots.shape
    most = min(logits.shape[1], groups.most)
    values, ids, normalizer = topk_logprobs(logits, most)
    ints = torch.empty((4, count, width), dtype=torch.int32, device=logits.device)
    floats = torch.empty((2, count, width), dtype=torch.float32, device=logits.device)
    alive = torch.empty(count, dtype=torch.int32, device=logits.device)
    parents, tokens, source, new_tokens = ints
    pad = triton.next_power_of_2(width)
    _choose[(count,)](
        values, ids, normalizer, normalizer if again is None else again, groups.slots, groups.rows,
        state.lengths, state.prompt_lengths, state.max_lengths, state.finish, state.stop_ids, state.forced_bos,
        state.forced_eos,
        beams.scores, beams.hypothesis_scores, beams.hypothesis_lengths, beams.ended, beams.can_improve,
        beams.length_penalty, beams.early_stopping, beams.diversity,
        alive, parents, tokens, floats[0], source, new_tokens, floats[1], groups.padding_slot,
        W=width, K=most, STOPS=state.stop_ids.shape[1], NORMALIZED=row_scores.normalized, AGAIN=again is not None,
        W_PAD=pad, K_PAD=triton.next_power_of_2(most), C_PAD=triton.next_power_of_2(width * most), num_warps=1,
    )  # fmt: skip
    longest = state.tokens.shape[1]
    _move[(count, triton.cdiv(longest, TILE))](
        groups.slots, alive, state.lengths, parents, tokens, floats[0], source, new_tokens, floats[1],
        state.tokens, state.logprobs, beams.hypotheses, beams.hypothesis_logprobs, groups.padding_slot, longest,
        W=width, W_PAD=pad, TILE=TILE, num_warps=4,
    )  # fmt: skip
    return parents


def reorder_cache(tables: Tensor, size: int, state: SequenceState, beams: BeamState, groups: Groups, parents: Tensor):
    """Brings the tables up to date -> the blocks to copy and where to, [G · W] int32 each"""
    count, width = groups.slots.shape
    sources, targets = torch.empty((2, count * width), dtype=torch.int32, device=tables.device)
    _reorder[(count,)](
        groups.slots, state.lengths, parents, tables, beams.spare_blocks, sources, targets, groups.padding_slot,
        tables.shape[1], size,
        W=width, W_PAD=triton.next_power_of_2(width), COLUMNS=triton.next_power_of_2(tables.shape[1]), num_warps=4,
    )  # fmt: skip
    return sources, targets
