"""Garbage that was exempt from collections, until it is collected."""

from __future__ import annotations

import gc
import weakref

import pytest

from vlm_app.core import garbage


class Node:
    def __init__(self):
        self.itself = self


@pytest.fixture
def unfrozen():
    yield
    gc.unfreeze()


def test_what_was_there_is_not_gone_through_again(unfrozen):
    garbage.exempt()
    assert gc.get_freeze_count() > 10_000 and len(gc.get_objects()) < gc.get_freeze_count()


def test_a_model_that_was_exempt_is_collected_once_it_is_unloaded(unfrozen):
    node = Node()
    gone = weakref.ref(node)
    garbage.exempt()
    del node
    gc.collect()
    assert gone() is not None, "it refers to itself"
    garbage.collect()
    assert gone() is None
