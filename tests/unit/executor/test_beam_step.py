"""A step of beam search on the CPU: what a search takes of equal scores does not depend on the searches beside it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from transformers.generation.utils import GenerationMixin

from vlm.executor.kv_cache import CacheShape
from vlm.executor.sampling.plan import SamplingPlan
from vlm.executor.state.batch_state import BatchState
from vlm.ops.sampling import beam_search
from vlm.ops.sampling.beam_candidates import best_of_all
from vlm.ops.state.beams import Groups, RowScores
from vlm.requests.request import Request
from vlm.requests.sampling_params import SamplingParams
from vlm.requests.sequence import Sequence

CPU = torch.device("cpu")
VOCAB, LONGEST, ENDS = 90, 9, 12
HELD = ("tokens", "logprobs", "lengths", "finish")
KEPT = ("hypotheses", "hypothesis_logprobs", "hypothesis_lengths", "hypothesis_scores", "ended")


@dataclass(frozen=True)
class Search:
    width: int
    ends: tuple[int, ...] = (1,)
    forced_eos: int = -1
    penalty: float = 1.0
    early: int = 0
    diversity: float = 0.0
    length: int = LONGEST
    forced_bos: int = -1


SEARCHES = (
    Search(2),
    Search(4, ends=tuple(range(1, 8)), early=1),
    Search(3, forced_eos=1, penalty=0.0),
    Search(4, penalty=-1.0, early=2, length=7),
    Search(2, ends=tuple(range(20, 32)), diversity=0.5),
    Search(5, ends=(3, 4), forced_bos=9, diversity=0.5),
    Search(4, ends=(-1,)),
    Search(4, penalty=2.0, forced_eos=40, length=5),
)


def state_of(searches: tuple[Search, ...]) -> BatchState:
    padding = sum(s.width for s in searches)
    state = BatchState(padding, 16, CacheShape(8, 2, 2, 2), CPU)
    state.slots = dataclasses.replace(state.slots, stop_ids=torch.full((padding + 1, ENDS), -1, dtype=torch.int32))
    slots, beams, first = state.slots, state.beams, 0
    slots.lengths[:], slots.prompt_lengths[:] = 1, 1
    beams.scores[:], beams.can_improve[:] = -1e9, True
    for search in searches:
        own = slice(first, first + search.width)
        slots.stop_ids[own, : len(search.ends)] = torch.tensor(search.ends, dtype=torch.int32)
        slots.finish[own], slots.max_lengths[own] = 0, search.length
        slots.forced_bos[own], slots.forced_eos[own] = search.forced_bos, search.forced_eos
        beams.length_penalty[own], beams.early_stopping[own] = search.penalty, search.early
        beams.diversity[own], beams.scores[first] = search.diversity, 0.0
        first += search.width
    return state


def groups_of(searches: tuple[Search, ...], more: int = 0) -> Groups:
    """The searches as rows of a batch; `more` beams and candidates than the widest has."""
    padding, widest = sum(s.width for s in searches), max(s.width for s in searches) + more
    slots, rows, first = [], [], 0
    for search in searches:
        own, extra = [*range(first, first + search.width)], widest - search.width
        slots.append(own + [padding] * extra)
        rows.append(own + [0] * extra)
        first += search.width
    most = max(s.width * max(2, 1 + sum(end >= 0 for end in s.ends)) for s in searches) + more
    none = [[padding] * widest], [[0] * widest]
    tensor = lambda values: torch.tensor(values, dtype=torch.int32)  # noqa: E731
    return Groups(tensor(slots + none[0]), tensor(rows + none[1]), padding, most)


def logits_of(search: int, step: int) -> Tensor:
    """Few different values, so that many are equal; often the same for two beams."""
    make = torch.Generator().manual_seed(100 * step + search)
    logits = torch.randint(0, 4, (SEARCHES[search].width, VOCAB), generator=make).float()
    logits[1::2] = logits[: len(logits) // 2]
    if step == 3:
        logits[:, 9:] = float("-inf")
    return logits


def outcomes(searches: list[int], *, more: int = 0, normalized: bool = False) -> list[dict[str, Tensor]]:
    """What each search has come to, all run together."""
    each = tuple(SEARCHES[i] for i in searches)
    state, groups = state_of(each), groups_of(each, more)
    for step in range(LONGEST):
        logits = torch.cat([logits_of(i, step) for i in searches])
        logits = logits.log_softmax(-1) if normalized else logits
        beam_search.reference_step(RowScores(logits, normalized=normalized), state.slots, state.beams, groups)
    assert (state.slots.finish[:-1] != 0).all()
    parts = torch.arange(len(state.slots.finish) - 1).split([s.width for s in each])
    fields = {name: getattr(state.slots, name) for name in HELD}
    fields |= {name: getattr(state.beams, name) for name in KEPT}
    return [{name: value[part] for name, value in fields.items()} for part in parts]


@pytest.mark.parametrize(("more", "normalized"), [(0, False), (0, True), (7, False)])
def test_equal_scores_fall_as_they_do_alone(more, normalized):
    together = outcomes([*range(len(SEARCHES))], more=more, normalized=normalized)
    for i, own in enumerate(together):
        [alone] = outcomes([i])
        for name, value in alone.items():
            assert torch.equal(own[name], value), (SEARCHES[i], name)


@pytest.mark.parametrize("search", [s for s in range(len(SEARCHES)) if not SEARCHES[s].diversity])
def test_of_equal_scores_those_are_taken_that_hugging_face_takes(search):
    each = (dataclasses.replace(SEARCHES[search], forced_bos=-1),)
    state, groups, width = state_of(each), groups_of(each), each[0].width
    alone = Groups(groups.slots[:1], groups.rows[:1], groups.padding_slot, groups.most)
    state.beams.scores[:width] = torch.tensor([-1.0, -2.0, -1.0, -2.0, -3.0])[:width]
    logprobs = logits_of(search, 1).log_softmax(-1)
    found = best_of_all(logprobs, state.slots, state.beams, alone)
    accumulated = (logprobs + state.beams.scores[:width, None]).view(1, -1)
    beam_ids = torch.arange(width)[None, :, None].int()
    scores, sequences, parents = GenerationMixin()._get_top_k_continuations(
        accumulated_log_probs=accumulated, running_sequences=torch.zeros(1, width, 1, dtype=torch.int64),
        running_beam_indices=beam_ids, cur_len=0, decoder_prompt_len=0, do_sample=False, beams_to_keep=groups.most,
        num_beams=width, batch_size=1,
    )  # fmt: skip
    assert torch.equal(found.scores, scores)
    assert found.tokens.tolist() == sequences[..., 0].tolist() and found.parents.tolist() == parents[..., 0].tolist()


def test_plans_are_few_whatever_widths_and_ends_are_asked_for():
    """Each is a graph on a GPU; those of what most searches ask for have no more candidates than these."""
    plans = {}
    for width in range(2, 129):
        for ends in range(1, 101):
            request = Request((0,), params=SamplingParams(num_beams=width))
            plan = SamplingPlan.from_sequences([Sequence(0, request, 10, 0, [0], num_stop_ids=ends)])
            plans[width, ends] = plan.beams, plan.most
    assert len(set(plans.values())) < 200
    assert all(most >= width * (1 + ends) and beams >= width for (width, ends), (beams, most) in plans.items())
    assert plans[4, 1] == (4, 8) and plans[5, 3] == (5, 20) and plans[5, 13] == (5, 128) and plans[9, 1] == (16, 18)
