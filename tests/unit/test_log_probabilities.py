"""Log-probabilities of an output's deltas, as an answer that does not stream holds them."""

from __future__ import annotations

from vlm_app.server.openai.api import _joined


def test_deltas_are_added_to_what_there_is_and_nothing_is_copied():
    rows = [1]
    joined = None
    for delta in ({"content": rows, "refusal": None}, {"content": [2, 3], "refusal": None}, {"content": []}):
        joined = _joined(joined, delta)
    assert joined == {"content": [1, 2, 3], "refusal": None} and joined["content"] is rows
    assert _joined(None, None) is None
