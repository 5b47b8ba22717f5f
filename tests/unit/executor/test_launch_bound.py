"""Which passes are CUDA graphs: what a GPU runs faster than the host launches it."""

from __future__ import annotations

import pytest

from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir, rebuilt
from tests.kits.ranks import with_followers
from vlm.config import RuntimeConfig
from vlm.executor.inputs.packing import graph_rows
from vlm.executor.paged import cross_kv, prefill
from vlm.executor.paged import passes as packed_passes
from vlm.executor.paged.launch_bound import LaunchBound

T5_SMALL, BART_LARGE, FLAN_T5_XL = 35_000_000, 203_000_000, 1_220_000_000  # parameters of encoders


@pytest.mark.parametrize(
    ("parameters", "rows", "is_graph"),
    [
        (T5_SMALL, 128 * 64, [True, True]),
        (T5_SMALL, 11_000, [True, True]),
        (BART_LARGE, 4_096, [True, True]),
        (BART_LARGE, 15_700, [False, True]),
        (BART_LARGE, 32_768, [False, False]),
        (FLAN_T5_XL, 3_000, [True, True]),
        (FLAN_T5_XL, 16_384, [False, False]),
    ],
)
def test_a_pass_is_a_graph_where_it_is_over_before_its_kernels_are_launched(parameters, rows, is_graph):
    """The first time, and the second."""
    bound = LaunchBound(parameters, 4096)
    assert [bound.chooses(rows), bound.chooses(rows)] == is_graph


def test_passes_in_8_bits_are_over_sooner():
    in_8_bits = LaunchBound(BART_LARGE, 4096, in_8_bits=True)
    assert [in_8_bits.chooses(32_768), in_8_bits.chooses(32_768)] == [False, True]
    assert not in_8_bits.chooses(65_536) and not in_8_bits.chooses(65_536)


def test_long_passes_of_one_size_are_one_graph():
    bound = LaunchBound(BART_LARGE, 4096)
    assert not bound.chooses(15_700) and bound.chooses(15_500) and bound.chooses(15_873 - 1)
    assert not bound.chooses(15_873) and not bound.chooses(8_000) and bound.chooses(15_400)


def test_small_passes_are_graphs_whatever_they_cost():
    bound = LaunchBound(10**12, 4096)
    assert bound.chooses(4096) and not bound.chooses(4097) and not bound.chooses(4097)
    assert LaunchBound(0, 1024).chooses(5000)  # of a network without any parameters, no division by zero


def test_rows_that_are_added_are_few_where_they_cost_something():
    assert [graph_rows(rows) for rows in (1, 16, 17, 513, 1024, 1025, 2048, 2326)] == [
        16, 16, 32, 640, 1024, 1088, 2048, 2432
    ]  # fmt: skip
    assert all(rows <= graph_rows(rows) < rows * 17 / 16 + 16 for rows in range(1025, 20_000))


def test_ranks_capture_the_same_passes(monkeypatch, tmp_path):
    """Where one rank captures a pass it runs it twice; another one that does not would wait for ever."""
    counted, bounds, count, bound = [], [], packed_passes.parameters_of, LaunchBound
    monkeypatch.setattr(packed_passes, "parameters_of", lambda network: counted.append(count(network)) or counted[-1])
    monkeypatch.setattr(
        packed_passes, "LaunchBound", lambda *sizes, in_8_bits: bounds.append((*sizes, in_8_bits)) or bound(*sizes)
    )
    engine = rebuilt(engine_dir(tiny.llama(seed=3, num_hidden_layers=3), tmp_path), pp_size=2)
    with_followers(engine, RuntimeConfig(device="cpu"), lambda pipe: True)
    assert len(set(counted)) == 2  # stages differ
    assert len(bounds) == 4 and set(bounds) == {
        (max(counted), prefill.LAUNCH_BOUND_PREFILL, False), (0, cross_kv.LAUNCH_BOUND_ROWS, False)
    }  # fmt: skip
