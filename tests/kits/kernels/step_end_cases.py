"""Checks of the kernels that end a step, as those of `kernel_cases`: penalties, the choice, what is appended."""

from __future__ import annotations

import dataclasses
import itertools

import torch

from vlm.ops.kernels import append_and_check_stop as append_kernel
from vlm.ops.kernels import append_likeliest as likeliest_kernel
from vlm.ops.kernels import penalize as penalize_kernel
from vlm.ops.kernels import topk_logprobs as topk_kernel
from vlm.ops.sampling import append_and_check_stop as append_op
from vlm.ops.sampling import append_likeliest as likeliest_op
from vlm.ops.sampling import append_sampled as sampled_op
from vlm.ops.sampling import penalize as penalize_op
from vlm.ops.sampling import topk_logprobs as topk_op
from vlm.ops.state.beams import Groups
from vlm.ops.state.sequences import SequenceState
from vlm.ops.state.token_rules import ALLOW, BAN, BIAS, END, FORCE, SEEN, SUPPRESS, TokenRules

SLOTS = 6


def slots_that_decode(count: int, device: torch.device) -> SequenceState:
    """Returns so many slots, and the padding slot, of which all but that have a first token."""
    from vlm.executor.kv_cache import CacheShape
    from vlm.executor.state.batch_state import BatchState

    state = BatchState(count, 260, CacheShape(8, 8, 4, 4), device).slots
    state.finish[:count] = 0
    return state


def append_likeliest(device: torch.device) -> None:
    state = slots_that_decode(1, device)
    likeliest_kernel.append_likeliest(
        state, torch.zeros(1, device=device).int(), torch.full((1, 3000), torch.nan).to(device)
    )
    assert 0 <= int(state.tokens[0, 1]) < 3000
    for rows, vocab, padding in ((5, 7, 0), (5, 1000, 0), (5, 50001, 0), (5, 50001, 7), (40, 9000, 0)):
        wide = torch.randn(rows, vocab + padding).round(decimals=1).to(device)  # rounded: many equals
        wide[:, vocab:] = torch.nan
        logits = wide[:, :vocab]
        logits[1, :] = 0.5
        logits[2, : vocab // 2] = -torch.inf  # all of a part
        states = [slots_that_decode(rows, device) for _ in range(2)]
        slots = torch.randperm(rows, device=device, dtype=torch.int32)
        slots[-1] = rows  # which has ended
        likeliest_op.reference(states[0], slots, logits)
        likeliest_kernel.append_likeliest(states[1], slots, logits)
        # the first of equals
        want = (logits == logits.amax(1, keepdim=True)).int().argmax(1)
        assert torch.equal(states[1].tokens[slots[:-1].long(), 1].long(), want[:-1])
        torch.testing.assert_close(states[1].logprobs, states[0].logprobs, atol=2e-5, rtol=1e-5)
        for name in ("tokens", "lengths", "finish", "loop_runs"):
            assert torch.equal(getattr(states[0], name), getattr(states[1], name)), name


def append_sampled(device: torch.device) -> None:
    """Settings of one row each: none, each filter, all of them, greedy, a nucleus that has shrunk; at last two rows of
    padding."""
    from vlm.ops.state.sampling import SamplingState

    rows = [{}, {"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.2}, {"top_k": 40, "top_p": 0.9, "min_p": 0.01},
            {"temperature": 0.0}, {"temperature": 0.01}, {"top_k": 1}, {"top_p": 0.0}, {"top_k": 300, "top_p": 0.9},
            {"top_p": 1e-9}, {"top_p": 0.05}, {"temperature": 1e-38}, {"top_k": 5, "top_p": 0.0},
            {"top_p": 0.9, "top_p_decay": 0.5, "top_p_min": 0.2, "decay_steps": 2}]  # fmt: skip
    cases = ((97, False, torch.float32), (97, True, torch.float32), (5000, False, torch.float32),
             (9001, True, torch.float32), (5000, False, torch.bfloat16))  # fmt: skip
    for turn, (vocab, rounded, dtype) in enumerate(cases):
        logits = _wide(len(rows) + 2, vocab, 7, device).to(dtype)[:, :vocab]
        logits.copy_(logits.round() if rounded else logits)  # rounded: many equals
        logits[0, : min(vocab - 9, 2100)] = -torch.inf  # all of a part
        scores = logits
        if turn % 2 == 0:
            scores = _wide(len(logits), vocab, 13, device)[:, :vocab]
            scores.copy_(logits.float().masked_fill(torch.rand(logits.shape, device=device) < 0.2, -torch.inf))
        settings = SamplingState.empty(len(rows) + 1, device)
        settings.temperature.fill_(1.3)
        settings.seeds.copy_(torch.randint(-(2**62), 2**62, (len(rows) + 1,)))
        settings.top_p_reset_id.fill_(5)
        for row, fields in enumerate(rows):
            for name, value in fields.items():
                getattr(settings, name)[row] = value
        states = [slots_that_decode(len(rows), device) for _ in range(2)]
        kept = [dataclasses.replace(settings, decay_steps=settings.decay_steps.clone()) for _ in range(2)]
        padding = torch.full((2,), len(rows))
        all_slots = torch.cat((torch.randperm(len(rows)), padding)).int().to(device)
        slots = all_slots.clone()
        slots[-3] = len(rows)  # a row of a search
        for _ in range(4):
            for op, state, how in zip((sampled_op.reference, sampled_op.by_kernels), states, kept, strict=True):
                op(state, slots, how, all_slots=all_slots, scores=scores, logits=logits)
        for name in ("tokens", "lengths", "finish"):
            assert torch.equal(getattr(states[0], name), getattr(states[1], name)), name
        torch.testing.assert_close(states[1].logprobs, states[0].logprobs, atol=2e-5, rtol=1e-5)
        assert torch.equal(kept[0].decay_steps[:-1], kept[1].decay_steps[:-1])
    _check_odd_logits(device)
    _check_neighbours(device)


def _check_neighbours(device: torch.device) -> None:
    """What goes by entropy draws as the reference has it, and others as they do without such a neighbour."""
    from vlm.ops.state.sampling import SamplingState

    slots = torch.arange(4, device=device, dtype=torch.int32)
    logits = _wide(4, 3000, 7, device)[:, :3000]
    operations = {"alone": sampled_op.by_kernels, "mixed": sampled_op.by_kernels,
                  "wanted": sampled_op.reference}  # fmt: skip
    chosen = {}
    for name, operation in operations.items():
        settings, state = SamplingState.empty(5, device), slots_that_decode(4, device)
        settings.temperature[:], settings.temperature[2], settings.seeds[:] = 1.2, 0, 7
        by_entropy = 0 if name == "alone" else 2
        if by_entropy:
            settings.typical_p[1], settings.eta_cutoff[3], settings.top_h[2] = 0.3, 0.02, 0.4  # the last is greedy
        for _ in range(8):
            operation(state, slots, settings, all_slots=slots, scores=logits, logits=logits, by_entropy=by_entropy)
        chosen[name] = state.tokens[:-1], state.logprobs[:-1]
    for of, rows in (("wanted", [1, 3]), ("alone", [0, 2])):
        for ours, wanted in zip(chosen["mixed"], chosen[of], strict=True):
            assert torch.equal(ours[rows], wanted[rows]), of
    assert not torch.equal(chosen["alone"][0][[1, 3]], chosen["mixed"][0][[1, 3]])


def _wide(rows: int, vocab: int, padding: int, device: torch.device) -> torch.Tensor:
    """Returns random scores with columns of NaN behind those of the vocabulary."""
    scores = 3 * torch.randn(rows, vocab + padding, device=device)
    scores[:, vocab:] = torch.nan
    return scores


def _check_odd_logits(device: torch.device) -> None:
    """What is NaN is not chosen where there is something else, what is infinite is, whatever is asked for."""
    from vlm.ops.state.sampling import SamplingState

    nan, inf = torch.nan, torch.inf
    kinds = ([nan], [-inf], [inf], [nan, 1.0, 2.0], [-inf, 3.0], [inf, 0.0, nan], [1.0])
    logits = torch.stack([torch.tensor(kind).repeat(3000)[:2999] for kind in kinds]).to(device)
    logits[-1, 1234] = inf
    numbers = logits.nan_to_num(nan=-inf, posinf=inf, neginf=-inf)
    wanted = numbers == numbers.amax(1, keepdim=True)
    wanted[3] = ~logits[3].isnan()  # of which any may be drawn
    slots = torch.arange(len(kinds), device=device, dtype=torch.int32)
    filters = [{}, {"top_k": 50}, {"top_k": 50, "top_p": 0.5}, {"top_k": 2000, "top_p": 0.5},
               {"top_p": 0.5, "min_p": 0.1}, {"temperature": 0.0}]  # fmt: skip
    for fields in filters:
        settings = SamplingState.empty(len(kinds) + 1, device)
        settings.temperature.fill_(0.7)
        for name, value in fields.items():
            getattr(settings, name).fill_(value)
        state = slots_that_decode(len(kinds), device)
        sampled_op.by_kernels(state, slots, settings, all_slots=slots, scores=logits, logits=logits)
        token = state.tokens[:-1, 1].long()
        assert ((token >= 0) & (token < 2999)).all() and wanted.gather(1, token[:, None])[2:].all(), fields


def penalize(device: torch.device) -> None:
    from vlm.ops.state.penalties import PenaltyState

    rows = SLOTS
    for vocab in (50, 4500):
        state = slots_that_decode(rows, device)
        state.tokens.copy_(torch.randint(0, vocab + 9, state.tokens.shape))  # some are rows of a prompt table
        state.tokens[3] = torch.tensor([7, 8, 9, 3], device=device).repeat(65)
        state.tokens[4, :2] = torch.tensor([vocab, vocab + 1])  # two of those, which are not alike
        state.lengths[:rows] = torch.tensor([1, 40, 260, 259, 2, 9])
        state.prompt_lengths[:rows] = torch.tensor([1, 7, 250, 4, 2, 9])
        state.stop_ids[:, :2] = torch.tensor([3, 60])
        penalties = PenaltyState.empty(rows + 1, device)
        penalties.repetition[:3], penalties.presence[1:4], penalties.frequency[2:] = 1.3, 0.7, 0.11
        penalties.ngrams.copy_(torch.tensor([3, 1, 2, 4, 2, 0, 0]))
        penalties.min_lengths[:4] = torch.tensor([2, 40, 500, 0])
        penalties.input_repetition.copy_(torch.tensor([1.0, 1.5, 0.8, 1.0, 1.2, 1.0, 1.0]))
        rules = _rules(state, device)
        padded = torch.tensor([4, 2, rows, rows])
        wide = vocab > 50  # several parts
        for slots, kinds in itertools.product((torch.arange(rows), padded), KINDS[wide * -3 :]):
            logits = _wide(len(slots), vocab, 14, device)[:, :vocab]
            logits[:3, :40] = -torch.inf  # what is allowed of the first three is not likely at all
            logits[:3, 70:71] = -torch.inf
            s = slots.int().to(device)
            searches = torch.arange(len(slots)).int().view(-1, 2).to(device)  # one of them has a beam that goes on
            for groups in (None, Groups(s.view(-1, 2), searches, rows, 8)):
                options = {"slots": s, "rules": rules, "kinds": kinds, "groups": groups}
                ours = penalize_kernel.penalize(logits, state, penalties, **options)
                wanted = penalize_op.reference(logits, state, penalties, **options)
                torch.testing.assert_close(ours, wanted, atol=2e-5 if groups else 1e-6, rtol=1e-6)


# of the rules that a batch has, those that hold
KINDS = ((BAN, SUPPRESS), (BIAS, SEEN), (ALLOW,), (FORCE, SUPPRESS, END), (BIAS, ALLOW, SUPPRESS),
         (), (BAN, ALLOW), (BIAS, SEEN, BAN, FORCE, SUPPRESS, ALLOW))  # fmt: skip


def _rules(state: SequenceState, device: torch.device) -> TokenRules:
    """Returns rules of all kinds: alone, at one place, behind one and two tokens, of which the second may differ, and
    behind twenty, some of which lie before the row."""
    rules, prefixes, memory = [], [], state.tokens.flatten()
    for slot, kind in itertools.product(range(SLOTS), range(7)):
        if kind == FORCE and slot % 2:
            continue
        length = int(state.lengths[slot])
        last, end = state.tokens[slot, max(length - 2, 0) : length].tolist(), slot * state.tokens.shape[1] + length
        for token, place, before in ((4, -1, []), (5, length, []), (6, length + 1, []), (70, -1, []), (8, -1, last),
                                     (9, -1, last[-1:]), (10, -1, [last[-1] + 1]), (-1, -1, []), (4, -1, last),
                                     (11, -1, memory[max(end - 20, 0) : end].tolist())):  # fmt: skip
            prefixes += [(len(rules), len(before) - i, each) for i, each in enumerate(before)]
            rules.append((slot, token + {SUPPRESS: 4, FORCE: 2}.get(kind, 0), kind, place))
    columns = lambda rows: torch.tensor(rows, dtype=torch.int32, device=device).T.contiguous()  # noqa: E731
    counts = torch.bincount(torch.tensor([rule for rule, *_ in prefixes]), minlength=len(rules)).int()
    where = (counts.cumsum(0).int() - counts).to(device), counts.to(device)
    return TokenRules(*columns(rules), torch.randn(len(rules)).to(device), *where, *columns(prefixes))


def topk_logprobs(device: torch.device) -> None:
    for rows, vocab, k in ((3, 7, 4), (2, 1000, 20), (5, 40000, 8), (1, 33, 33), (2, 70, 0), (3, 2100, 200)):
        logits = 3 * torch.randn(rows, vocab, device=device)
        logits[0, 2:] = float("-inf")  # a row that is almost decided
        values, ids, normalizer = topk_kernel.topk_logprobs(logits, k)
        want, want_ids, want_normalizer = topk_op.reference(logits, k)
        torch.testing.assert_close(values, want)
        torch.testing.assert_close(normalizer, want_normalizer, atol=2e-5, rtol=1e-5)
        assert torch.equal(ids[want > float("-inf")], want_ids[want > float("-inf")])
    alike = torch.randint(0, 3, (3, 5000), device=device).bfloat16() * torch.tensor(
        [[-0.0], [1.0], [1.0]], device=device
    )
    alike[2, 7:] = float("-inf")
    values, ids, _ = topk_kernel.topk_logprobs(alike, 70)
    want, want_ids = alike.float().sort(dim=-1, descending=True, stable=True)
    assert torch.equal(values, want[:, :70]) and torch.equal(ids, want_ids[:, :70])


def append_and_check_stop(device: torch.device) -> None:
    # a list of end tokens that is looked at in parts
    many = torch.full((SLOTS + 1, 256), -1, dtype=torch.int32, device=device)
    states = [dataclasses.replace(slots_that_decode(SLOTS, device), stop_ids=many.clone()) for _ in range(2)]
    for state in states:
        state.finish[2] = 1
        state.max_lengths[0] = 5
        state.forced_eos[0] = 77
        state.forced_bos[3] = 6
        state.stop_ids[1, 200] = 9
        state.detect_loops[3:] = 1
    slots = torch.tensor([0, 1, 2, 3, 4, SLOTS, SLOTS], dtype=torch.int32, device=device)
    for turn in range(200):
        tokens = torch.tensor([3, turn % 50, 4, 5, turn % 20, 1, 1], device=device)
        logprobs = -torch.rand(7).to(device)
        append_op.reference(states[0], slots, tokens, logprobs)
        append_kernel.append_and_check_stop(states[1], slots, tokens, logprobs)
    assert states[0].finish.tolist()[:5] == [3, 1, 1, 2, 2]
    for name in ("tokens", "logprobs", "lengths", "finish", "loop_runs"):
        assert torch.equal(getattr(states[0], name), getattr(states[1], name)), name
