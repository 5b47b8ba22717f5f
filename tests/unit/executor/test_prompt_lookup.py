"""Proposals of prompt lookup, beside a search in plain Python."""

from __future__ import annotations

import random

import pytest
import torch

from vlm.executor.kv_cache import CacheShape
from vlm.executor.state.batch_state import BatchState
from vlm.ops.sampling.prompt_lookup import propose
from vlm.ops.state.drafts import MAX_NGRAM, NONE

CPU = torch.device("cpu")
VOCAB = 12


def expected(source: list[int], tokens: list[int], count: int) -> list[int]:
    """What follows the longest, then latest, match of the last tokens; what overlaps the end repeats."""
    for n in range(MAX_NGRAM, 0, -1):
        last = tokens[-n:]
        if len(last) < n or max(last) >= VOCAB:
            continue
        for text in (tokens, source):
            for place in range(len(text) - (text is tokens), n - 1, -1):
                if text[place - n : place] != last or (found := continuation(text, place, text is tokens, count)) == []:
                    continue
                return found
    return []


def continuation(text: list[int], place: int, wraps: bool, count: int) -> list[int]:
    found: list[int] = []
    for i in range(count):
        at = place + (i % (len(text) - place) if wraps else i)
        if at >= len(text) or text[at] >= VOCAB:
            break
        found.append(text[at])
    return found


def state_of(rows: list[tuple[list[int], list[int]]], *, room: int = 40, limit: int = 8) -> BatchState:
    """Slots of these sources and tokens, the rest of each filled with what another request left there."""
    state = BatchState(len(rows), room, CacheShape(1, 1, 1, 1), CPU, max_source_len=20)
    state.slots.tokens.fill_(1)
    state.drafts.sources.fill_(1)
    for slot, (source, tokens) in enumerate(rows):
        state.slots.tokens[slot, : len(tokens)] = torch.tensor(tokens)
        state.drafts.sources[slot, : len(source)] = torch.tensor(source, dtype=torch.int32)
        state.slots.lengths[slot], state.drafts.source_lengths[slot] = len(tokens), len(source)
        state.slots.finish[slot], state.drafts.limits[slot] = 0, limit
    return state


def proposals(state: BatchState, rows: int, count: int) -> list[list[int]]:
    slots = torch.arange(rows, dtype=torch.int32)
    found = propose(state.slots, state.drafts, slots, count, VOCAB).T.tolist()
    return [[token for token in row if token != NONE] for row in found]


def test_the_same_as_a_plain_search():
    """Ragged rows of few tokens, with and without a source, some ids rows of a prompt table."""
    choose = random.Random(5)
    text = lambda low, high: [choose.choice((2, 3, 4, 5, VOCAB + 1)) for _ in range(choose.randint(low, high))]  # noqa: E731
    rows = [(text(0, 20), text(1, 30)) for _ in range(300)]
    found = proposals(state_of(rows), len(rows), 4)
    assert found == [expected(source, tokens, 4) for source, tokens in rows]
    assert sum(map(bool, found)) > 150 and [] in found


@pytest.mark.parametrize(
    ("source", "tokens", "found"),
    [
        ([], [5, 6, 7, 8, 5, 6], [7, 8, 5, 6]),
        ([], [5, 6, 5], [6, 5, 6, 5]),  # a period of two, again and again
        ([], [5], []),
        ([7, 8, 9, 10], [0, 7, 8], [9, 10]),  # up to the source's end
        ([7, 8, 9], [7, 8, 4, 8], [4, 8, 4, 8]),  # of equally long matches the latest
        ([6, 8, 9], [5, 8, 4, 6, 8], [9]),  # a longer one comes before it
        ([7, 8], [8], []),  # nothing follows a source's last token
    ],
)
def test_what_is_proposed(source, tokens, found):
    assert proposals(state_of([(source, tokens)]), 1, 4) == [found] == [expected(source, tokens, 4)]


def test_limits():
    """Of a request; of a sequence's length; none of one that has ended, nor of padding."""
    rows = [([], [5, 6, 5])] * 4
    state = state_of(rows)
    state.drafts.limits[0], state.slots.max_lengths[1], state.slots.finish[2] = 2, 6, 1
    assert [len(row) for row in proposals(state, 5, 4)] == [2, 2, 0, 4, 0]


@pytest.mark.parametrize("length", [38, 39, 40])
def test_a_sequence_that_is_nearly_full_and_repeats_nothing(length):
    assert proposals(state_of([([], [VOCAB] * length)], room=40), 1, 4) == [[]]
