"""Which passes are CUDA graphs: what a GPU runs faster than the host launches it."""

from __future__ import annotations

import pytest

from vlm.executor.launch_bound import LaunchBound

T5_SMALL, BART_LARGE, FLAN_T5_XL = 35_000_000, 203_000_000, 1_220_000_000  # parameters of encoders


@pytest.mark.parametrize(
    ("parameters", "rows", "is_graph"),
    [
        (T5_SMALL, 128 * 64, True),
        (T5_SMALL, 11_000, True),  # of few parameters, whatever its size is
        (BART_LARGE, 4_096, True),
        (BART_LARGE, 16_380, True),  # as good as full
        (BART_LARGE, 15_700, False),  # a graph's size is 16,384
        (BART_LARGE, 32_768, False),
        (FLAN_T5_XL, 3_000, True),
        (FLAN_T5_XL, 16_384, False),
    ],
)
def test_a_pass_is_a_graph_where_it_is_over_before_its_kernels_are_launched(parameters, rows, is_graph):
    assert (rows in LaunchBound.of(parameters, 4096)) == is_graph


def test_small_passes_are_graphs_whatever_they_cost():
    bound = LaunchBound.of(10**12, 4096)
    assert 4096 in bound and 4097 not in bound
    assert 5000 in LaunchBound.of(0, 1024)  # of a network without any parameters, no division by zero
