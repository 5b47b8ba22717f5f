"""IA3: each row of a packed batch is scaled by its own adapter, part by part and on every rank."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.kits.models.lora_kit import IDS, KIND, PARTS, batch_of, check_ranks, layer_of, quantize, weights_of
from vlm.layers.adapters.base import AdapterRoom
from vlm.layers.adapters.ia3 import Ia3Weights
from vlm.layers.context import ModelContext
from vlm.layers.linear import Linear
from vlm.registry.weights.adapters import put_adapter
from vlm.requests.adapters import NO_ADAPTER


def rows_of(*parts: str) -> torch.Tensor:
    return torch.cat([torch.full((size,), name in parts) for name, size in PARTS.items()])


def scales_of(*parts: str, of_inputs: bool, seed: int, width: int = 8) -> Ia3Weights:
    """What an adapter scales of some of the parts."""
    torch.manual_seed(seed)
    rows = rows_of(*parts)
    if of_inputs:
        return Ia3Weights(torch.randn(width), of_inputs=True, rows=rows)
    return Ia3Weights(torch.randn(14).where(rows, 1.0), of_inputs=False)


# outputs of two parts; inputs of one and outputs of another; a LoRA beside them
ADAPTERS = (
    [scales_of("k", "v", of_inputs=False, seed=0)],
    [scales_of("q", of_inputs=True, seed=1), scales_of("k", of_inputs=False, seed=2)],
    [weights_of(2, "q", "v", seed=3)],
)


def put_all(network: nn.Module) -> nn.Module:
    for number, layers in enumerate(ADAPTERS):
        put_adapter(network, number, {"0": layers}, **KIND)
    return network


def adapted(x: torch.Tensor, ids: list[int]) -> torch.Tensor:
    """Each row's result of the weights that its adapter is merged into."""
    [linear], found = layer_of(), []
    for row, number in zip(x, ids, strict=True):
        weight, bias = linear.weight, linear.bias
        for change in ADAPTERS[number] if number >= 0 else []:
            weight, bias = change.merged(weight), change.merged_bias(bias)
        found.append(weight @ row + bias)
    return torch.stack(found)


def test_each_row_is_scaled_by_its_own_adapter():
    network, x = put_all(layer_of()), torch.randn(len(IDS), 8)
    [linear] = network
    torch.testing.assert_close(linear(x, batch_of(IDS)), adapted(x, IDS))
    plain = linear(x)
    for row in (1, 5):
        assert linear(x, batch_of(IDS))[row].equal(plain[row])
    assert list(network.state_dict()) == ["0.weight", "0.bias"]


def test_a_layer_of_one_part_has_one_product():
    context = ModelContext(adapters=AdapterRoom(max_loras=1, max_rank=1))
    network = nn.Sequential(linear := Linear(8, 14, context=context)).requires_grad_(False)
    linear.weight, linear.bias = nn.Parameter(torch.randn(14, 8), False), nn.Parameter(torch.randn(14), False)
    scales, calls, apply = torch.randn(8), [], linear.method.apply
    put_adapter(network, 0, {"0": [Ia3Weights(scales, of_inputs=True)]}, **KIND)
    linear.method.apply = lambda *args: calls.append(args) or apply(*args)
    x = torch.randn(2, 8)
    found = linear(x, batch_of([0, NO_ADAPTER]))
    assert len(calls) == 1
    torch.testing.assert_close(found, torch.stack([x[0] * scales, x[1]]) @ linear.weight.T + linear.bias)


def test_a_row_does_not_see_what_others_have_not_even_what_is_no_number():
    network, x = put_all(layer_of()), torch.randn(2, 8)
    [linear] = network
    want = linear(x, batch_of([0, NO_ADAPTER]))
    put_adapter(network, 2, {"0": [Ia3Weights(torch.full((14,), torch.nan), of_inputs=False)]}, **KIND)
    assert linear(x, batch_of([0, NO_ADAPTER])).equal(want)


def test_nothing_is_left_of_what_lay_in_a_slot():
    network, x = put_all(layer_of()), torch.randn(3, 8)
    [linear] = network
    for number in range(3):
        put_adapter(network, number, {}, **KIND)
    torch.testing.assert_close(linear(x, batch_of([0, 1, 2])), linear(x))


@pytest.mark.parametrize("axis", ["column", "row"])
def test_ranks_have_their_rows_and_columns(axis):
    x = torch.randn(len(IDS), 8)
    check_ranks(axis, put_all, x, adapted(x, IDS))


def test_a_quantized_layer_is_scaled_around_its_product():
    network = put_all(layer_of())
    [linear] = network
    quantize(linear)
    x = torch.randn(2, 8)
    found, scales = linear(x, batch_of([0, 0])), ADAPTERS[0][0].scales
    torch.testing.assert_close(found, linear(x) * scales)
