"""What a rank that the first one has started does where it cannot go on."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from types import SimpleNamespace

import pytest

from vlm.api.model import rank_processes
from vlm.errors import EngineError


class Ended(BaseException):
    """Stands for the process's end."""


@pytest.fixture
def rank(monkeypatch, tmp_path):
    """Runs one whose connection breaks; returns the pipe that the first one holds, and how it ended."""
    ends: list[object] = []
    reading, writing = os.pipe()
    (tmp_path / "input").write_bytes(pickle.dumps((None, SimpleNamespace(), 1, 2)))
    monkeypatch.setattr(sys, "argv", ["rank", str(tmp_path / "ranks")])
    monkeypatch.setattr(rank_processes, "_take_device", lambda runtime: None)
    monkeypatch.setattr(rank_processes, "_store", lambda folder, size: None)
    monkeypatch.setattr(rank_processes.signal, "signal", lambda *_: None)

    def broken(*_, **__):
        raise EngineError("it has gone.")

    def ended(code: object) -> None:
        ends.append(code)
        raise Ended

    monkeypatch.setattr(rank_processes, "_connected", broken)
    monkeypatch.setattr(rank_processes.os, "_exit", ended)
    # who is killed does nothing more for a while; that thread must be over before `os.kill` is itself again
    over, others = threading.Event(), set(threading.enumerate())
    monkeypatch.setattr(rank_processes.os, "kill", lambda pid, number: ends.append("killed") or over.wait(2))
    with open(tmp_path / "input", "rb") as given:
        pipe = SimpleNamespace(buffer=given, fileno=lambda: reading)
        monkeypatch.setattr(sys, "stdin", pipe)
        monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=SimpleNamespace(write=len), flush=lambda: None))
        yield SimpleNamespace(writing=writing, ends=ends)
        over.set()
        for thread in set(threading.enumerate()) - others:
            thread.join(60)


def test_it_says_so_and_ends_at_once(rank, capsys):
    with pytest.raises(Ended):
        rank_processes._main()
    assert rank.ends == [1] and capsys.readouterr().err == "vlm: rank 1 of 2: it has gone.\n"
    os.close(rank.writing)


def test_where_the_first_one_has_gone_it_ends_without_a_word(rank, monkeypatch, capsys):
    """Which a thread finds out, that Python's own end would not let run."""
    monkeypatch.setattr(rank_processes, "SECONDS_TO_NOTICE", 0.5)
    os.close(rank.writing)
    with pytest.raises(Ended):
        rank_processes._main()
    assert rank.ends[0] == "killed"
