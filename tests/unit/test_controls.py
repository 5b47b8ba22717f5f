"""Penalties and prohibitions against Hugging Face's processors, row by row in one batch of different settings."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from vlm.errors import InputError
from vlm.ops import controls
from vlm.runtime.batch_state import BatchState
from vlm.runtime.kv_cache import CacheShape
from vlm.runtime.request import Request, SamplingParams, Sequence

VOCAB = 12
HISTORIES = [[0, 3, 4, 5, 3, 4], [0, 3, 3, 3, 3], [0], [0, 7, 8, 7, 8, 7], [0, 5, 6, 9, 10, 5, 6, 9], [4, 4]]


def run(params: list[SamplingParams], histories: list[list[int]], prompt: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of the rows before and after."""
    state = BatchState(len(histories), 16, CacheShape(8, 8, 4, 4), torch.device("cpu"))
    sequences = [
        Sequence(i, Request(tuple(h[:prompt]), encoder_output=torch.zeros(3, 4), params=p), 16, 3, list(h), slots=[i])
        for i, (h, p) in enumerate(zip(histories, params, strict=True))
    ]
    state.admit(sequences, [[2]] * len(sequences))
    logits = torch.randn(len(histories), VOCAB, generator=torch.Generator().manual_seed(0)) * 3
    rows = torch.arange(len(histories), dtype=torch.int32)
    return logits, controls.apply(logits, state.slots, state.controls, rows)


def check(params: list[SamplingParams], processors: list, histories=HISTORIES) -> None:
    logits, found = run(params, histories)
    for row, (history, processor) in enumerate(zip(histories, processors, strict=True)):
        want = logits[row : row + 1].clone()
        if processor is not None:
            want = processor(torch.tensor([history]), want)
        torch.testing.assert_close(found[row], want[0])


def test_repetition_penalty():
    values = [1.0, 1.3, 2.0, 0.7, 1.1, 5.0]
    processors = [RepetitionPenaltyLogitsProcessor(v) if v != 1 else None for v in values]
    check([SamplingParams(repetition_penalty=v) for v in values], processors)


def test_no_repeat_ngrams():
    sizes = [2, 1, 2, 3, 4, 8]
    check([SamplingParams(no_repeat_ngram_size=n) for n in sizes], [NoRepeatNGramLogitsProcessor(n) for n in sizes])
    check([SamplingParams(no_repeat_ngram_size=n) for n in (1, 2, 0, 2, 3, 2)],
          [NoRepeatNGramLogitsProcessor(n) if n else None for n in (1, 2, 0, 2, 3, 2)])  # fmt: skip


def test_bad_words():
    words = [((7,),), ((3, 3, 3), (5,)), ((3, 4),), ((8, 7, 9), (7, 8)), ((5, 6, 9, 11), (1,)), ()]
    processors = [NoBadWordsLogitsProcessor([list(w) for w in ws], eos_token_id=2) if ws else None for ws in words]
    check([SamplingParams(bad_words_ids=w) for w in words], processors)


def test_presence_and_frequency_count_the_output_alone():
    logits, found = run(
        [SamplingParams(presence_penalty=0.5, frequency_penalty=0.25)] * 2, [[3, 3, 4, 4, 4], [3, 3, 5, 6, 5]], 2
    )
    taken = torch.zeros(2, VOCAB)
    taken[0, 4], taken[1, 5], taken[1, 6] = 0.5 + 0.75, 0.5 + 0.5, 0.5 + 0.25
    torch.testing.assert_close(found, logits - taken)


def test_no_end_before_the_shortest_length():
    _, found = run([SamplingParams(min_new_tokens=n) for n in (3, 2, 0)], [[0, 5, 6]] * 3)
    assert found[:, 2].isinf().tolist() == [True, False, False]
    assert not found[:, 3:].isinf().any()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
        ({"min_p": 1.5}, "min_p is 1.5"),
        ({"no_repeat_ngram_size": 9}, "no_repeat_ngram_size is 9"),
        ({"bad_words_ids": ((),)}, "bad_words_ids"),
        ({"bad_words_ids": (tuple(range(9)),)}, "bad_words_ids"),
        ({"presence_penalty": 1e9}, "presence_penalty"),
        ({"min_new_tokens": 5, "max_new_tokens": 4}, "min_new_tokens 5 is more than max_new_tokens 4"),
    ],
)
def test_values_outside_their_range(options, reason):
    with pytest.raises(InputError, match=reason):
        SamplingParams(**options)
