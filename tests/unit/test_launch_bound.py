"""Which passes are CUDA graphs: what a GPU runs faster than the host launches it."""

from __future__ import annotations

import pytest

from tests import tiny
from tests.engines import engine_dir, rebuilt
from tests.ranks import with_followers
from vlm.config import RuntimeConfig
from vlm.executor import paged_runner
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


def test_ranks_capture_the_same_passes(monkeypatch, tmp_path):
    """Where one rank captures a pass it runs it twice; another one that does not would wait for ever."""
    counted, bounds, count, of = [], [], paged_runner.parameters_of, LaunchBound.of
    monkeypatch.setattr(paged_runner, "parameters_of", lambda network: counted.append(count(network)) or counted[-1])
    monkeypatch.setattr(LaunchBound, "of", lambda *sizes: bounds.append(sizes) or of(*sizes))
    engine = rebuilt(engine_dir(tiny.llama(seed=3, num_hidden_layers=3), tmp_path), pp_size=2)
    with_followers(engine, RuntimeConfig(device="cpu"), lambda pipe: True)
    assert len(set(counted)) == 2  # stages differ
    assert len(bounds) == 4 and set(bounds) == {
        (max(counted), paged_runner.LAUNCH_BOUND_PREFILL), (0, paged_runner.LAUNCH_BOUND_ROWS)
    }  # fmt: skip
