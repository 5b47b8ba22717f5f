"""Adapters take turns on the device: who is used stays, who has not been used for longest gives way."""

from __future__ import annotations

import pytest
import torch

from tests.kits.models.lora_kit import KIND, batch_of, layer_of, weights_of
from vlm.errors import InputError, LimitError
from vlm.executor.adapters import AdapterCache
from vlm.layers.adapters.base import AdapterRoom
from vlm.layers.adapters.ia3 import Ia3Weights
from vlm.requests.adapters import NO_ADAPTER

ADAPTERS = {
    0: [weights_of(2, "q", seed=1)],
    1: [Ia3Weights(torch.linspace(2, 3, 14), of_inputs=False)],
    2: [weights_of(3, "k", "v", seed=2)],
    3: [],
}


def cache_of(slots: int, capacity: int = 4, max_rank: int = 5):
    """A cache of a network of one layer, with all adapters, and the layer."""
    network = layer_of()
    cache = AdapterCache({"decoder": network}, AdapterRoom(slots, max_rank), capacity=capacity, **KIND)
    for number, layers in ADAPTERS.items():
        cache.add(number, {"decoder": {"0": layers}} if layers else {})
    return cache, network[0]


def merged(number: int, x: torch.Tensor) -> torch.Tensor:
    [linear] = layer_of()
    weight, bias = linear.weight, linear.bias
    for change in ADAPTERS[number]:
        weight, bias = change.merged(weight), change.merged_bias(bias)
    return x @ weight.T + bias


def test_each_that_is_held_is_where_the_cache_says():
    cache, linear = cache_of(slots=2)
    x = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    for held in ({0, 1}, {1, 2}, {3, 2}, {0, 3}, {1, NO_ADAPTER}, {2, 1}):
        cache.hold(held)
        for number in held - {NO_ADAPTER}:
            found = linear(x, batch_of([cache[number]] * 2))
            torch.testing.assert_close(found, merged(number, x))
    assert cache[NO_ADAPTER] == NO_ADAPTER


def test_the_longest_unused_gives_way_and_none_that_is_held():
    cache, _ = cache_of(slots=2)
    cache.hold({0, 1})
    slots = cache[0], cache[1]
    cache.hold({0})
    cache.hold({2})  # in place of 1
    assert (cache[0], cache[2]) == slots
    cache.hold({0, 3})  # which keeps 0 where it is
    assert (cache[0], cache[3]) == slots
    with pytest.raises(LimitError, match="3 adapters are in use at once, the device has room for 2; ask again later"):
        cache.hold({0, 1, 2})


def test_layers_that_grow_are_told_of_once():
    cache, _ = cache_of(slots=1)
    told = []
    cache.on_growth = lambda: told.append(True)
    for number in (0, 1, 2, 3, 0):
        cache.hold({number})
    assert not told, "all of them had been there before"
    cache.remove(3)
    cache.add(4, {"decoder": {"0": [Ia3Weights(torch.rand(8), of_inputs=True)]}})
    assert told == [True]


def test_what_there_is_no_room_for():
    cache, _ = cache_of(slots=2)
    with pytest.raises(LimitError, match="there is room for 4 adapters at once; unload one"):
        cache.add(4, {})
    cache.remove(1)
    with pytest.raises(LimitError, match="room for adapters of rank 5, this one has 6"):
        cache.add(4, {"decoder": {"0": [weights_of(6, "q")]}})
    with pytest.raises(InputError, match="adapter, number 4, is not loaded"):
        cache.check(4)
    cache.hold({0, 2})
    cache.add(5, {}, in_use={0, 2})  # on the host alone
    assert {cache[0], cache[2]} == {0, 1}
    with pytest.raises(LimitError, match="there is room for 0 adapters at once"):
        AdapterCache().add(0, {})


def test_room_for_many_costs_nothing_by_itself():
    cache = AdapterCache(room=AdapterRoom(10**12, 2), capacity=2)
    for number in range(2):
        cache.add(number, {})
        cache.hold({number})
    assert [cache[0], cache[1]] == [0, 1]
