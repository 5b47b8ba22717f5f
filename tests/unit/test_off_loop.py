"""What the event loop computes itself, and what it leaves to threads."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from vlm.api.off_loop import SHORT_OUTPUT, SHORT_TEXT, is_short_input, is_short_output, off_loop
from vlm.requests.request import Request
from vlm.requests.token_update import Completion, Hypothesis


def completion(num_tokens: int, hypotheses: tuple[Hypothesis, ...] = ()) -> Completion:
    nothing = {"top_logprobs": [], "context_logits": None, "generation_logits": None, "first_scheduled_time": 0.0}
    counts = dict.fromkeys(("prompt_tokens", "preemptions", "num_drafted", "num_accepted", "seed"), 0)
    tokens = [1] * num_tokens
    return Completion(Request((0,)), tokens, [0.0] * num_tokens, "eos", hypotheses=hypotheses, **nothing, **counts)


def test_short_work_is_done_where_it_is_and_errors_are_raised_either_way():
    async def ask():
        threads = [await off_loop(is_short, threading.get_ident) for is_short in (True, False)]
        for is_short in (True, False):
            with pytest.raises(ValueError, match="invalid literal"):
                await off_loop(is_short, int, "a")
        return threads, threading.get_ident()

    (here, elsewhere), own = asyncio.run(ask())
    assert here == own != elsewhere


@pytest.mark.parametrize(
    ("source", "sampling", "is_short"),
    [
        ({"text": "a" * SHORT_TEXT}, {"max_new_tokens": 5, "temperature": None}, True),
        ({"text": "a" * (SHORT_TEXT + 1)}, {}, False),
        ({"text": "a" * SHORT_TEXT, "task": "b"}, {}, False),
        ({"input_ids": [1]}, {}, False),
        ({"pixel_values": np.zeros(1)}, {}, False),
        ({"text": "a"}, {"bad_words": ("b",)}, False),
    ],
)
def test_an_input_of_numbers_and_little_text_is_short(source, sampling, is_short):
    assert is_short_input(source, sampling) is is_short


def test_an_output_of_few_tokens_is_short_and_a_search_is_not():
    assert is_short_output(completion(SHORT_OUTPUT - 1))
    assert not is_short_output(completion(SHORT_OUTPUT))
    assert not is_short_output(completion(1, (Hypothesis([1], [0.0], 0.0),)))
