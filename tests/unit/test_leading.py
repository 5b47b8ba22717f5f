"""The engine of the first of several ranks."""

from __future__ import annotations

from types import SimpleNamespace

from vlm.engine.leading import LeadingEngine
from vlm.requests.request import Request
from vlm.requests.sampling_params import SamplingParams


def test_requests_are_not_looked_at_ahead_as_others_are_made_of_them():
    """An engine keeps what it has looked at by the request, until that is added."""
    expected, added = [], []
    engine = SimpleNamespace(expect=expected.extend, add=added.append)
    leading = LeadingEngine(engine, SimpleNamespace(hosts=None, broadcast=lambda *_: None))
    requests = [Request(decoder_prompt_token_ids=(1,), params=SamplingParams()) for _ in range(2)]
    leading.dismiss.detach()
    leading.expect(requests)
    for request in requests:
        leading.add(request)
    assert not expected and len(added) == 2 and not set(added) & set(requests)
    assert all(request.params.seed is not None for request in added)
