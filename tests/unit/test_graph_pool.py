"""CUDA graphs of passes: what holds without a GPU."""

from __future__ import annotations

import gc
import weakref

import pytest

from vlm.garbage import without_collections


class Cycle:
    def __init__(self):
        self.itself = self


@pytest.mark.parametrize("was_enabled", [True, False])
def test_no_garbage_is_collected_in_a_capture(was_enabled):
    (gc.enable if was_enabled else gc.disable)()
    try:
        with pytest.raises(KeyError), without_collections():
            closed = weakref.ref(Cycle())
            many = [[] for _ in range(50 * gc.get_threshold()[0])]
            assert closed() is not None and many
            raise KeyError
        assert gc.isenabled() is was_enabled
    finally:
        gc.enable()
