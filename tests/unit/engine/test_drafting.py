"""When a step drafts: while it brings enough, in batches that are small."""

from __future__ import annotations

from vlm.engine.drafting import LEAST_GAIN, MOST_ROWS, RETRY, drafts_of, learn, most_new
from vlm.executor.decode_burst import DecodeBurst, StepOutput
from vlm.requests.request import Request
from vlm.requests.sequence import Sequence

STEPS = 16


def sequence(max_drafts: int = 3) -> Sequence:
    return Sequence(0, Request((1,)), 10**6, 0, [1], max_drafts=max_drafts)


def run(sequence: Sequence, drafts: int, accepted: int) -> None:
    """A burst that has brought a token a step, and so many `accepted` ones."""
    sequence.scheduled += most_new(sequence, STEPS, drafts)
    length, burst = len(sequence.tokens) + STEPS + accepted, DecodeBurst([sequence], STEPS, drafts, *[None] * 4)
    learn(sequence, StepOutput(length, 0, [], [], num_accepted=sequence.num_accepted + accepted), burst)
    sequence.tokens += [1] * (STEPS + accepted)


def test_while_it_pays():
    """Nobody knows at first; then by what has come of it."""
    good, bad = sequence(), sequence()
    assert drafts_of([good, bad], 3) == 3
    for _ in range(8):
        run(good, 3, accepted=STEPS)
        run(bad, 3, accepted=1)
    assert drafts_of([good], 3) == drafts_of([good, bad], 3) == 3, "one gains enough for two"
    assert drafts_of([bad], 3) == drafts_of([good, bad, bad, bad, bad, bad], 3) == 0
    assert drafts_of([], 3) == drafts_of([good], 0) == drafts_of([sequence(max_drafts=0)], 3) == 0


def test_it_is_tried_again():
    bad, count = sequence(), {0: 0, 3: 0}
    for _ in range(10 * RETRY // STEPS):
        drafts = drafts_of([bad], 3)
        run(bad, drafts, accepted=0)
        count[drafts] += STEPS
    assert 2 * STEPS < count[3] < 0.15 * count[0], "drafts that are in vain are few of all steps"
    while not drafts_of([bad], 3):
        run(bad, 0, accepted=0)
    for _ in range(4):
        run(bad, 3, accepted=STEPS)
    assert bad.draft_gain > 3 * LEAST_GAIN, "and what has become good is kept"


def test_small_batches_alone():
    most = MOST_ROWS // 4
    assert drafts_of([sequence()] * most, 3) == 3 and drafts_of([sequence()] * (most + 1), 3) == 0
    assert drafts_of([sequence()] * (most + 1), 1) == 1, "fewer tokens, more sequences"


def test_what_is_scheduled_is_what_has_come():
    """A burst may bring more than it does: what it has not brought is scheduled again."""
    one, limited = sequence(), sequence(max_drafts=1)
    for each in (one, limited):
        each.scheduled = len(each.tokens)
        run(each, 3, accepted=5)
        assert each.scheduled == len(each.tokens)
    assert most_new(one, 4, 3) == 16 and most_new(limited, 4, 3) == 8 and most_new(sequence(0), 4, 3) == 4
