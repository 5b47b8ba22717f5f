"""What ranks tell each other in a decode step: recorded from a step, and repeated by itself."""

from __future__ import annotations

import pytest
import torch

from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir, rebuilt
from tests.kits.rank_cases import CPU, check_equal, outputs
from tests.kits.ranks import on_ranks, with_followers
from vlm.api.pipeline import Pipeline
from vlm.executor.collective_time import CollectiveTime
from vlm.parallel.collectives import Ranks
from vlm.parallel.mapping import Mapping
from vlm.parallel.recording import recorded

FLOAT, LAYERS, ROWS, PADDED_ROWS = 4, 4, 3, 4


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    model = tiny.t5(seed=1, tied=False, num_decoder_layers=LAYERS)
    return engine_dir(model, tmp_path_factory.mktemp("t5"), max_batch_size=8)


def measured(pipe: Pipeline) -> tuple[CollectiveTime, list[tuple]]:
    found = pipe.collective_time(ROWS)
    assert found is not None
    return found, outputs(pipe)


@pytest.mark.parametrize(
    ("sizes", "calls", "floats_a_row"),
    [
        # each layer's sums of self-attention, cross-attention and feed-forward, and half of the 60 scores
        ({"tp_size": 2}, 3 * LAYERS + 1, lambda hidden: 3 * LAYERS * hidden + 30),
        # the first stage's rows, and the last one's scores
        ({"pp_size": 2}, 2, lambda hidden: hidden + 60),
        ({"tp_size": 2, "pp_size": 2}, 3 * LAYERS // 2 + 2, lambda hidden: (3 * LAYERS // 2 + 1) * hidden + 60),
    ],
    ids=["tensor", "pipeline", "both"],
)
def test_a_step_is_measured_and_changes_nothing(t5, sizes, calls, floats_a_row):
    found, tokens = with_followers(rebuilt(t5, max_batch_size=8, **sizes), CPU, measured)
    hidden = Pipeline(t5, CPU).config.hidden_size
    assert (found.calls, found.bytes) == (calls, FLOAT * PADDED_ROWS * floats_a_row(hidden)) and found.seconds > 0
    check_equal(tokens, outputs(Pipeline(t5, CPU)))


def test_one_process_tells_nobody(t5):
    assert Pipeline(t5, CPU).collective_time(ROWS) is None


def test_calls_are_recorded_in_their_order_and_only_while_that_is_asked():
    def work(ranks: Ranks) -> list[tuple]:
        x = torch.ones(2, 3)
        ranks.stage.all_reduce(x)
        with recorded(ranks) as calls:
            ranks.stage.all_gather(x)
            ranks.pipeline.broadcast(x[:1], root=1)
        ranks.stage.all_reduce(x)
        for call in calls:
            call.repeat()
        return [(call.method, tuple(call.x.shape), call.peers) for call in calls]

    assert on_ranks(Mapping(2, 2), work) == [[("all_gather", (2, 3), ()), ("broadcast", (1, 3), (1,))]] * 4
