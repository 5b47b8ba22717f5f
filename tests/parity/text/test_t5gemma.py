"""What T5Gemma's encoder computes on its way, whose layers see windows or all, with capped scores."""

from __future__ import annotations

import torch

import vlm
from tests.kits.models import tiny

LENGTHS = (9, 3, 21)


@torch.no_grad()
def test_hidden_states_and_attentions(tmp_path):
    model = tiny.t5gemma(encoder={"hidden_size": 48})
    model.save_pretrained(tmp_path)
    texts = tiny.texts(model, LENGTHS)
    pipe = vlm.load(tmp_path, device="cpu", cache_dir=tmp_path / "cache")
    found = pipe.encode([{"encoder_input_ids": text} for text in texts], attentions=True, hidden_states=True)
    for text, out in zip(texts, found, strict=True):
        want = model.model.encoder(torch.tensor([text]), output_attentions=True, output_hidden_states=True)
        torch.testing.assert_close(out.last_hidden_state, want.last_hidden_state[0], atol=1e-4, rtol=1e-4)
        for ours, theirs in zip(out.hidden_states, want.hidden_states, strict=True):
            torch.testing.assert_close(ours, theirs[0], atol=1e-4, rtol=1e-4)
        for ours, theirs in zip(out.attentions, want.attentions, strict=True):
            torch.testing.assert_close(ours, theirs[0], atol=1e-5, rtol=1e-4)
    windowed, whole = (weights.count_nonzero() for weights in out.attentions)
    assert windowed < whole == out.attentions[1].numel(), "of 21 rows a window of 4 to each side hides some"
