"""How long kernels took to compile."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from vlm.ops.kernels import compile_time

knobs = pytest.importorskip("triton.knobs")


def test_what_lies_in_the_cache_takes_no_time(monkeypatch):
    told = []
    monkeypatch.setattr(knobs.compilation, "listener", lambda **event: told.append(event))
    compile_time.watch()
    before = compile_time.compile_seconds()
    for cache_hit in (False, True):
        event = {"src": None, "metadata": {}, "metadata_group": {}, "times": SimpleNamespace(total=1_500_000)}
        knobs.compilation.listener(**event, cache_hit=cache_hit)
    assert compile_time.compile_seconds() - before == 1.5
    assert [event["cache_hit"] for event in told] == [False, True], "who listened before still does"
