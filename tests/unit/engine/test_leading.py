"""The engine of the first of several ranks."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import vlm
from vlm.engine.leading import LeadingEngine, follow
from vlm.parallel.collectives import OneHost
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


def test_an_engine_that_follows_holds_no_requests_while_it_waits_for_calls():
    class Watched(Request):
        """It may be referred to weakly."""

    class Hosts(OneHost):
        def broadcast(self, value=None):
            gc.collect()
            held.append([request for request in requests if request() is not None])
            if engine.has_work:
                return [("step", (), {})]
            return None if requests else [("add", ([watched()],), {}), ("step", (), {})]

    def watched():
        request = Watched((0,), encoder_input_ids=(7, 8, 1), params=SamplingParams(max_new_tokens=3))
        requests.append(weakref.ref(request))
        return request

    engine, requests, held = vlm.load("mini-t5", device="cpu").llm, [], []
    follow(engine, Hosts())
    assert requests and not held[-1]
