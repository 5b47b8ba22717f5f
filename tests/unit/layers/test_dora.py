"""DoRA: the lengths of rows are those of the weights as they lie there, whatever keeps them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.kits.models.lora_kit import KIND, PARTS, batch_of, layer_of, weights_of
from vlm.errors import InputError
from vlm.executor.adapters import AdapterCache
from vlm.layers.adapters.base import AdapterRoom
from vlm.layers.adapters.dora import DoraWeights
from vlm.layers.quant.dense import Dense
from vlm.layers.quant.methods import quantization_of
from vlm.registry.weights import adapters
from vlm.registry.weights.adapters import beside_network, put_adapter
from vlm.requests.adapters import NO_ADAPTER

METHODS = {"dense": Dense(), **{
    name: quantization_of(name, {"group_size": 4} if name.startswith("int4") else {}).method
    for name in ("int8", "int4", "int4-asymmetric", "fp8", "w8a8")
}}  # fmt: skip


def dora_of(*parts: str, seed: int = 0) -> DoraWeights:
    """A DoRA of some of the parts."""
    rows = torch.cat([torch.full((size,), name in parts) for name, size in PARTS.items()])
    lora = weights_of(2, *parts, seed=seed)
    return DoraWeights(lora, torch.rand(14) + 0.5, rows)


def kept_by(method) -> nn.Sequential:
    network = layer_of()
    [linear] = network
    kept = method.quantize(linear.weight)
    linear.keep(method)
    for name, values in kept.items():
        setattr(linear, name, nn.Parameter(values, requires_grad=False))
    return network


@pytest.mark.parametrize("method", METHODS)
def test_rows_get_their_lengths_beside_weights_as_they_are_kept(method, monkeypatch):
    monkeypatch.setattr(adapters, "BLOCK", 24)  # three rows at once
    network, dora = kept_by(METHODS[method]), dora_of("q", "v")
    [linear] = network
    changes, undefined = beside_network(network, {"0": [dora]})
    put_adapter(network, 1, changes, **KIND)
    x = torch.randn(3, 8)
    found, plain = linear(x, batch_of([1, NO_ADAPTER, 0])), linear(x)
    weight = dora.lora.merged(METHODS[method].dequantize(dict(linear.named_parameters())))
    scales = (dora.magnitude / weight.norm(dim=1)).where(dora.rows, 1.0)
    added = dora.lora.b @ (dora.lora.a @ x[0])
    # beside what the method computes, which may round x
    want = scales * (plain[0] - linear.bias + added) + linear.bias
    torch.testing.assert_close(found[0], want)
    assert found[1:].equal(plain[1:]) and not undefined


def test_banks_add_after_they_have_scaled_whichever_came_first():
    """A LoRA is there before the first DoRA, whose outputs are scaled."""
    network, dora, x = layer_of(), dora_of("q", "k", seed=1), torch.randn(2, 8)
    [linear] = network
    put_adapter(network, 0, {"0": [lora := weights_of(3, "q", "v", seed=2)]}, **KIND)
    put_adapter(network, 1, beside_network(network, {"0": [dora]})[0], **KIND)
    found = linear(x, batch_of([0, 1]))
    torch.testing.assert_close(found[0], lora.merged(linear.weight) @ x[0] + linear.bias)
    torch.testing.assert_close(found[1], dora.merged(linear.weight) @ x[1] + linear.bias)
    put_adapter(network, 1, {}, **KIND)
    torch.testing.assert_close(linear(x, batch_of([1, 1])), linear(x))


def test_an_adapter_that_another_rank_cannot_have_is_refused_here_too():
    cache = AdapterCache({"decoder": layer_of()}, AdapterRoom(1, 5), capacity=1, minimum=lambda value: 0, **KIND)
    with pytest.raises(InputError, match="gives lengths to rows of zeros, which have no direction; it was made for"):
        cache.add(0, {"decoder": {"0": [dora_of("q")]}})
    with pytest.raises(InputError, match="adapter, number 0, is not loaded"):
        cache.check(0)
