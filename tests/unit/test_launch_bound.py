"""Which passes over texts are CUDA graphs: those that a GPU is sooner done with than the host has launched them."""

from __future__ import annotations

import pytest

from vlm.executor.paged_runner import LAUNCH_BOUND_ROWS, launch_bound_rows

T5_SMALL, BART_LARGE = 35_330_816, 203_000_000  # parameters of the encoders
BATCH = 128  # texts


@pytest.mark.parametrize(("parameters", "length", "is_graph"), [(T5_SMALL, 64, True), (BART_LARGE, 350, False)])
def test_small_encoders_read_larger_batches_as_one_graph(parameters, length, is_graph):
    assert (BATCH * length <= launch_bound_rows(parameters, LAUNCH_BOUND_ROWS)) == is_graph


def test_no_encoder_has_fewer_rows_than_the_least():
    assert launch_bound_rows(10**12, 4096) == 4096
    assert launch_bound_rows(0, 1024) > 1024  # of one without any, no division by zero
