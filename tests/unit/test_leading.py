"""The engine of the first of several ranks."""

from __future__ import annotations

from types import SimpleNamespace

from vlm.engine.leading import LeadingEngine
from vlm.requests.request import Request
from vlm.requests.sampling_params import SamplingParams


def test_requests_without_a_seed_have_one_that_all_ranks_are_told():
    added = []
    engine = SimpleNamespace(add=added.extend)
    leading = LeadingEngine(engine, SimpleNamespace(hosts=None, broadcast=lambda *_: None))
    leading.dismiss.detach()
    own, drawn = (Request(decoder_prompt_token_ids=(1,), params=SamplingParams(seed=seed)) for seed in (7, None))
    leading.add([own, drawn])
    assert added[0] is own and added[1].params.seed is not None and leading._calls == [("add", (added,), {})]
