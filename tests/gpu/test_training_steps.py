"""The mini models' training steps as CUDA graphs."""

from __future__ import annotations

import copy

import pytest
import torch

from training.scenes import subject as subjects
from training.scenes.captured import Captured
from training.scenes.loader import held_out
from training.scenes.models import MODELS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
]


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.captured])
def test_captured_steps_teach_what_eager_ones_do(name, monkeypatch):
    """Batches of two shapes in turn, so that one is met, captured and replayed between steps of the other."""
    monkeypatch.setattr(subjects, "NOISE", 0.0)
    torch.manual_seed(0)
    subject = MODELS[name]()
    subject.model.cuda()
    batches = [subject.batch(held_out(number, 3)) for number in (4, 4, 6, 4, 6, 6, 4, 6)]
    state = copy.deepcopy(subject.model.state_dict())
    losses = []
    for captured in (False, True):
        subject.model.load_state_dict(state)
        optimizer = torch.optim.AdamW(subject.model.parameters(), lr=1e-4, fused=True, capturable=True)

        def step(batch, optimizer=optimizer):
            optimizer.zero_grad(set_to_none=True)
            loss = subject.loss(**{key: x.cuda() for key, x in batch.items()})
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = Captured(step) if captured else step
        losses.append([step(batch).item() for batch in batches])
    assert losses[0][-1] < losses[0][0] - 0.1
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
