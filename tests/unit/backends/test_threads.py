"""How many CPU threads are taken, and how they wait."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.kits.servers.server_kit import alone
from vlm.backends import threads
from vlm.backends.threads import num_threads, set_threads, take_one_thread, threads_for, usable_cpus
from vlm_app.cli.main import main


@pytest.fixture(autouse=True)
def three_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    usual = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(usual)


@pytest.fixture
def cgroup(monkeypatch, tmp_path):
    monkeypatch.setattr(threads, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 5, 7}, raising=False)
    return tmp_path


@pytest.mark.parametrize(("limit", "cpus"), [("max 100000", 4), ("150000 100000", 2), ("5000 100000", 1), ("?", 4)])
def test_a_container_s_quota_and_the_affinity_count(cgroup, limit, cpus):
    assert usable_cpus() == 4
    (cgroup / "cpu.max").write_text(limit)
    assert usable_cpus() == cpus


@pytest.mark.parametrize(("quota", "cpus"), [("-1", 4), ("300000", 3)])
def test_quotas_of_the_first_version(cgroup, quota, cpus):
    (cgroup / "cpu").mkdir()
    (cgroup / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (cgroup / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert usable_cpus() == cpus


def test_no_more_threads_than_cores_unless_the_user_says_so(monkeypatch):
    monkeypatch.setattr(threads, "usable_cpus", lambda: 2)
    set_threads(None)
    assert torch.get_num_threads() == 2
    set_threads(3)
    assert torch.get_num_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    set_threads(None)
    assert torch.get_num_threads() == 3


def test_the_command_says_how_threads_wait_unless_the_user_has(monkeypatch, capsys):
    for name in threads.WAITING_BY_USER:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    with pytest.raises(SystemExit):
        main(["--version"])
    assert "GOMP_SPINCOUNT" not in os.environ
    monkeypatch.delenv("OMP_WAIT_POLICY")
    with pytest.raises(SystemExit):
        main(["--version"])
    assert {name: os.environ[name] for name in threads.WAITING} == threads.WAITING
    for name in threads.WAITING:
        monkeypatch.delenv(name)


def test_small_passes_take_one_thread_and_large_ones_all():
    with threads_for(threads.SINGLE_THREAD_PRODUCTS, 3):
        assert torch.get_num_threads() == 1
        assert num_threads() == 3  # what a model that is loaded meanwhile goes by
    with threads_for(threads.SINGLE_THREAD_PRODUCTS + 1, 3):
        assert torch.get_num_threads() == 3
    torch.set_num_threads(1)  # as a thread that began during another one's small pass
    with threads_for(threads.SINGLE_THREAD_PRODUCTS + 1, 3):
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == num_threads() == 3


def test_a_decode_step_of_a_small_model_takes_one(monkeypatch):
    pipeline = alone("mini-t5")
    runner = pipeline.llm.executor.runner
    torch.set_num_threads(3)  # loading it took no more than there are cores
    monkeypatch.setattr(runner, "_threads", 3)
    seen = {"encoder": set(), "decoder": set()}
    hooks = [
        network.register_forward_pre_hook(lambda *_, name=name: seen[name].add(torch.get_num_threads()))
        for name, network in (("encoder", runner.cross_kv.encoder), ("decoder", runner.decoder.blocks[0]))
    ]
    pipeline.generate("translate English to German: two", max_new_tokens=3)
    for hook in hooks:
        hook.remove()
    assert seen == {"encoder": {3}, "decoder": {1}}
    assert torch.get_num_threads() == 3


def test_threads_of_a_pool_compute_alone_and_others_as_before():
    count = lambda _: torch.get_num_threads()  # noqa: E731
    with ThreadPoolExecutor(8, initializer=take_one_thread) as pool:
        assert set(pool.map(count, range(200))) == {1}
    assert torch.get_num_threads() == 3
    with ThreadPoolExecutor(1) as pool:
        assert list(pool.map(count, range(2))) == [3, 3]
