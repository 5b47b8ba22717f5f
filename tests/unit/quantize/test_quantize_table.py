"""What `vlm quantize` says beneath its table."""

from __future__ import annotations

import pytest

from vlm_app.quantize.table import summary

RESULT = {
    "tokens": 20,
    "dtype": "float32",
    "device": "cpu",
    "token_agreement": 100.0,
    "equal_outputs": 100.0,
    "logprob_difference": {"mean": 0.0, "largest": 0.0},
}


@pytest.mark.parametrize(
    ("held_out", "compared_on", "words"),
    [
        (True, 1, "On 1 held-out input (20 tokens"),
        (True, 32, "On 32 held-out inputs (20 tokens"),
        (False, 1, "On 1 input, which it was calibrated on (20 tokens"),
        (False, 2, "On 2 inputs, which it was calibrated on (20 tokens"),
    ],
)
def test_it_counts_what_it_compared_on(held_out, compared_on, words):
    (line,) = summary(RESULT | {"held_out": held_out, "compared_on": compared_on})
    assert line.startswith(words)
