"""The end of connections between GPUs: NCCL's abort waits for the graphs that its group is called in, or for ever."""

from __future__ import annotations

from threading import Event

import pytest
import torch

from vlm.parallel.collectives import Ranks
from vlm.parallel.process_group import ProcessGroup

SECONDS = 20.0  # for what a thread does


class Graphs:
    """Stands for a pool of graphs."""

    def __init__(self):
        self.forgotten = Event()

    def clear(self) -> None:
        self.forgotten.set()


class Group:
    """Stands for one of NCCL's, captured in graphs."""

    def __init__(self, graphs: Graphs):
        self._graphs, self.begun, self.ended = graphs, Event(), Event()

    def abort(self) -> None:
        self.begun.set()
        if self._graphs.forgotten.wait(SECONDS):
            self.ended.set()


@pytest.fixture
def connected(monkeypatch):
    """Returns two groups of NCCL's, the graphs that both are called in, and ranks that have them."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    graphs = Graphs()
    groups = [Group(graphs), Group(graphs)]
    stage, every = (ProcessGroup(group, 2, torch.device("cuda:0")) for group in groups)
    ranks = Ranks(0, 2, stage=stage, all=every)
    ranks.hold(graphs)
    return ranks, groups, graphs


def test_graphs_end_before_connections(connected):
    ranks, groups, graphs = connected
    ranks.close()
    assert graphs.forgotten.is_set() and all(group.ended.is_set() for group in groups)


def test_every_group_is_aborted_though_graphs_are_there(connected):
    """Kernels that wait for a rank that has gone are those of any group; what waits here must not hold that up."""
    ranks, groups, graphs = connected
    ranks.abort()
    assert all(group.begun.wait(SECONDS) for group in groups) and not graphs.forgotten.is_set()
    ranks.close()
    assert all(group.ended.wait(SECONDS) for group in groups)


def test_one_rank_holds_no_graphs():
    """The ranks of engines without others are one object, which would keep all graphs for ever."""
    alone = Ranks()
    alone.hold(Graphs())
    assert alone._graphs == []
