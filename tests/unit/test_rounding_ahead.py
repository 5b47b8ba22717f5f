"""Passes of networks whose products round their rows: within them norms and activations may wait for that."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

from vlm.executor import networks
from vlm.executor.networks import rounding_ahead
from vlm.layers.context import ModelContext
from vlm.layers.linear import Linear
from vlm.layers.quant.dense import Dense
from vlm.layers.quant.fp8 import Fp8


@pytest.mark.parametrize("method, waits", [(Fp8(), True), (Dense(), False)])
def test_norms_wait_where_a_product_rounds_its_rows(monkeypatch, method, waits):
    entered = []

    @contextlib.contextmanager
    def norms_ahead(device, *, rounds):
        entered.append((device.type, rounds))
        yield

    monkeypatch.setattr(networks, "norms_ahead", norms_ahead)
    layer = Linear(4, 4, context=ModelContext())
    layer.method = method
    network = nn.Sequential(nn.LayerNorm(4), layer)
    forward = rounding_ahead(network, torch.device("cpu"))
    assert not entered
    layer.method = Dense()  # what it computes is of no interest here
    layer.weight = nn.Parameter(torch.eye(4))
    x = torch.randn(3, 4)
    assert torch.equal(forward(x), network(x))
    assert entered == [("cpu", True)] * waits
