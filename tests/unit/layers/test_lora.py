"""LoRA: each row of a packed batch is changed by its own adapter, part by part and on every rank."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.kits.models.lora_kit import IDS, KIND, batch_of, check_ranks, layer_of, quantize, weights_of
from vlm.layers.adapters.lora import LoraWeights
from vlm.registry.weights.adapters import put_adapter
from vlm.requests.adapters import NO_ADAPTER

ADAPTERS = ([weights_of(1, "q", "k", "v")], [weights_of(5, "q", seed=1), weights_of(2, "v", seed=2)], [])


def put_all(network: nn.Module) -> nn.Module:
    for number, layers in enumerate(ADAPTERS):
        put_adapter(network, number, {"0": layers}, **KIND)
    return network


def added(x: torch.Tensor, ids: list[int]) -> torch.Tensor:
    """What the rows' adapters add, one row at a time."""
    none = torch.zeros(14)
    return torch.stack([
        sum((w.b @ (w.a @ row) for w in (ADAPTERS[i] if i >= 0 else [])), none) for row, i in zip(x, ids, strict=True)
    ])  # fmt: skip


def test_each_row_has_its_own_adapter_whatever_its_rank_and_parts():
    network, x = put_all(layer_of()), torch.randn(len(IDS), 8)
    [linear] = network
    plain = linear(x)
    torch.testing.assert_close(linear(x, batch_of(IDS)), plain + added(x, IDS))
    for row in (1, 3, 5):  # the base, and an adapter that leaves this layer as it is
        assert linear(x, batch_of(IDS))[row].equal(plain[row])
    assert list(network.state_dict()) == ["0.weight", "0.bias"]


def test_a_row_does_not_see_what_others_have_not_even_what_is_no_number():
    network, x = put_all(layer_of()), torch.randn(2, 8)
    [linear] = network
    want = linear(x, batch_of([0, NO_ADAPTER]))
    put_adapter(network, 2, {"0": [LoraWeights(torch.full((1, 8), torch.inf), torch.ones(14, 1))]}, **KIND)
    assert linear(x, batch_of([0, NO_ADAPTER])).equal(want)


@pytest.mark.parametrize("axis", ["column", "row"])
def test_ranks_have_their_rows_and_columns(axis):
    x = torch.randn(len(IDS), 8)
    [whole] = layer_of()
    check_ranks(axis, put_all, x, whole(x) + added(x, IDS))


def test_a_quantized_layer_has_adapters_beside_it():
    network = put_all(layer_of())
    [linear] = network
    quantize(linear)
    x = torch.randn(len(IDS), 8)
    torch.testing.assert_close(linear(x, batch_of(IDS)), linear(x) + added(x, IDS))
