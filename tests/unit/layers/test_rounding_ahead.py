"""Passes of networks whose products round their rows: within them norms and activations may wait for that."""

from __future__ import annotations

import contextlib
import subprocess
import sys

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


WAITING = """
import sys, torch
from vlm.ops.kernels.norms_ahead import NormsAhead

class Rows:
    row, launched = torch.zeros(2, 3), 0

    def launch(self, rounding=None):
        self.launched += 1

rows = Rows()
with NormsAhead(2) as ahead:
    ahead.put(rows)
    torch.empty(3), rows.row.view(3, 2)
    assert rows.launched == 0, "neither reads it"
    rows.row + 1
    assert rows.launched == 1
    ahead.put(rows)
assert rows.launched == 2
assert "torch._dynamo" not in sys.modules and "sympy" not in sys.modules
"""


def test_what_waits_is_launched_ahead_of_who_reads_it_without_torchs_compiler():
    """Whose import takes seconds."""
    pytest.importorskip("triton", reason="triton is not installed on this platform")
    done = subprocess.run([sys.executable, "-c", WAITING], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
