"""Garbage that is not collected: what was exempt, what a block makes, what a load leaves."""

from __future__ import annotations

import gc
import weakref

import pytest

from vlm.garbage import without_collections
from vlm_app.core.processes.garbage import collect, exempt, importing, rarely


class Node:
    def __init__(self):
        self.itself = self


@pytest.fixture
def unfrozen():
    yield
    gc.unfreeze()


def test_what_was_there_is_not_gone_through_again(unfrozen):
    exempt()
    assert gc.get_freeze_count() > 10_000 and len(gc.get_objects()) < gc.get_freeze_count()


def test_a_model_that_was_exempt_is_collected_once_it_is_unloaded(unfrozen):
    node = Node()
    gone = weakref.ref(node)
    exempt()
    del node
    gc.collect()
    assert gone() is not None, "it refers to itself"
    collect()
    assert gone() is None


@pytest.mark.parametrize("was_on", [True, False])
def test_imports_are_not_gone_through_and_what_they_made_is_exempt(unfrozen, was_on):
    gc.unfreeze()
    try:
        if not was_on:
            gc.disable()
        with pytest.raises(ImportError), importing():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() == was_on and gc.get_freeze_count() == 0
        with importing():
            assert not gc.isenabled()
        assert gc.isenabled() == was_on and gc.get_freeze_count() > 10_000
    finally:
        gc.enable()


def test_collections_are_as_frequent_as_before_once_a_model_is_loaded_or_is_not():
    usual = gc.get_threshold()
    with rarely():
        assert gc.isenabled() and gc.get_threshold()[0] == 100 * usual[0]
    assert gc.get_threshold() == usual
    with pytest.raises(MemoryError), rarely():
        raise MemoryError
    assert gc.get_threshold() == usual


def test_models_may_be_loaded_at_the_same_time():
    usual, loads = gc.get_threshold(), [rarely(), rarely()]
    for load in loads:
        load.__enter__()
        assert gc.get_threshold()[0] == 100 * usual[0]
    loads[0].__exit__(None, None, None)
    assert gc.get_threshold()[0] == 100 * usual[0]
    loads[1].__exit__(None, None, None)
    assert gc.get_threshold() == usual


@pytest.mark.parametrize("was_enabled", [True, False])
def test_no_garbage_is_collected_in_a_block(was_enabled):
    (gc.enable if was_enabled else gc.disable)()
    try:
        with pytest.raises(KeyError), without_collections():
            closed = weakref.ref(Node())
            many = [[] for _ in range(50 * gc.get_threshold()[0])]
            assert closed() is not None and many
            raise KeyError
        assert gc.isenabled() is was_enabled
    finally:
        gc.enable()


def test_no_garbage_is_collected_until_the_last_of_several_blocks_ends():
    """Another thread's, in which a graph is captured, say."""
    first, second = without_collections(), without_collections()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()
