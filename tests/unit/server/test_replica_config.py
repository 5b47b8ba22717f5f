"""Where replicas run, and what each of them gets of a server's options."""

from __future__ import annotations

from contextvars import copy_context
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest
import torch

from vlm.errors import InputError
from vlm_app.cli.errors import print_error
from vlm_app.core import renamed
from vlm_app.core.load_options import LoadOptions
from vlm_app.server.core.config import ServerConfig
from vlm_app.server.replicas import run
from vlm_app.server.replicas.config import VISIBLE, Placement, ReplicaConfig, placements
from vlm_app.server.replicas.on_ray import replica_share
from vlm_app.server.replicas.replica import Replica
from vlm_app.server.replicas.run import replica_jobs
from vlm_app.server.replicas.supervisor import Supervisor
from vlm_app.server.repository.served_models import ServedModels


@pytest.fixture
def four_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv(VISIBLE, raising=False)


def names(replicas: int | None, devices: str | None, device: str | None = None, ranks: int = 1) -> list[str]:
    return [str(place) for place in placements(ReplicaConfig(replicas, devices), device, ranks)]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ((2, None), ["cuda:0", "cuda:1"]),
        ((2, None, "cuda"), ["cuda:0", "cuda:1"]),
        ((2, None, "cpu"), ["cpu", "cpu"]),
        ((None, "all"), ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]),
        ((None, "cuda:3, cuda:1"), ["cuda:3", "cuda:1"]),
        ((1, "cuda"), ["cuda:0"]),
        ((3, "cpu,cpu,cpu"), ["cpu", "cpu", "cpu"]),
        ((2, None, None, 2), ["cuda:0,cuda:1", "cuda:2,cuda:3"]),
        ((2, "all", None, 2), ["cuda:0,cuda:1", "cuda:2,cuda:3"]),
        ((2, None, "cpu", 2), ["cpu", "cpu"]),  # ranks of the CPU share it
    ],
)
def test_each_replica_has_devices_of_its_own(four_gpus, arguments, found):
    assert names(*arguments) == found


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((5, None), "device cuda:4 is not there: 4 CUDA devices are visible; use cpu."),
        ((3, None, None, 2), "device cuda:4 is not there: 4 CUDA devices are visible; use cpu."),
        ((None, "cuda:4"), "device cuda:4 is not there: 4 CUDA devices are visible; use cpu."),
        ((None, "cuda:0,cuda:0"), "devices is cuda:0,cuda:0; name each GPU once."),
        ((None, "cuda,cuda:0"), "devices is cuda,cuda:0; name each GPU once."),
        ((None, "cuda:0,cpu"), "devices is cuda:0,cpu; give the CPU alone, or GPUs alone."),
        ((None, "cuda:0,"), "devices names ''; allowed are auto, cpu, cuda and cuda:N."),
        ((2, "all"), "--replicas is 2, and --devices has room for 4; leave one of the two out."),
        ((2, None, "cuda:1"), "--device is cuda:1, and a replica takes a device of its own; give --devices, or cuda."),
        ((None, "all", "cuda"), "--device and --devices are both given; leave one of the two out."),
        (
            (None, "cuda:0,cuda:1,cuda:2", None, 2),
            "--devices names 3 GPUs, and each replica takes 2, for its engine is built so; give a multiple of 2.",
        ),
    ],
)
def test_what_cannot_be_is_said(four_gpus, arguments, says):
    with pytest.raises(InputError) as caught:
        names(*arguments)
    assert str(caught.value) == says


@pytest.mark.parametrize(("count", "words"), [(0, "at least 1"), (2000, "at most 1024")])
def test_no_replica_and_too_many_are_refused(count, words):
    with pytest.raises(InputError, match=rf"^--replicas is {count}; it must be {words}\.$"):
        ReplicaConfig(replicas=count)


def test_a_process_sees_its_devices_alone(monkeypatch):
    monkeypatch.delenv(VISIBLE, raising=False)
    assert Placement(("cpu",)).visible is None
    assert Placement(("cuda:1", "cuda:3")).visible == "1,3"
    monkeypatch.setenv(VISIBLE, "7, GPU-8a,9")
    assert Placement(("cuda:2", "cuda:1")).visible == "9,GPU-8a"


def jobs(count: int, device: str = "cpu", runtime: dict | None = None, **config):
    served = ServedModels({"a": "b"}, ["c"], LoadOptions({"dtype": "float32"}, runtime or {}))
    return replica_jobs(served, [Placement((device,))] * count, ServerConfig(**config), Path("/x"), print)


def test_the_front_has_checked_what_replicas_do_not():
    config = {"api_key": "k", "allowed_hosts": ("a",), "allowed_origins": ("http://b",), "max_body_mb": 3}
    first, second = jobs(2, **config, exit_when_broken=False)
    assert first.config == second.config and first.socket != second.socket
    own = first.config
    assert (own.api_key, own.allowed_hosts, own.allowed_origins, own.max_body_mb) == (None, ("*",), (), 3)
    assert own.exit_when_broken and own.max_connections > ServerConfig.max_connections


@pytest.mark.parametrize(("asked", "each"), [(0, 0), (1, 1), (2, 2), (8, 2), (16, 4)])
def test_replicas_share_the_processes_that_decode(asked, each):
    assert {job.config.preprocess_workers for job in jobs(4, preprocess_workers=asked)} == {each}


def test_replicas_share_the_cpu(monkeypatch):
    monkeypatch.setattr(run, "usable_cpus", lambda: 12)
    options = [job.models.options for job in jobs(4)]
    assert {each.runtime["threads"] for each in options} == {3} and options[0].build == {"dtype": "float32"}
    assert jobs(20)[0].models.options.runtime["threads"] == 1
    assert jobs(4, runtime={"threads": 7})[0].models.options.runtime == {"threads": 7, "device": "cpu"}
    assert jobs(4, "cuda:3")[0].models.options.runtime == {"device": "cuda"}


def test_one_replica_speaks_for_all(capsys):
    for job in jobs(3):
        job.say("a warning")
    assert capsys.readouterr().out == "a warning\n"


class Unloadable(ServedModels):
    def load(self, on_failure, progress=None):
        error = InputError("max_batch_size is 9; give max_batch_size 2.", settings=("max_batch_size",))
        on_failure(error)
        raise error


@pytest.mark.slow
def test_a_replica_calls_settings_as_the_command_does(tmp_path, capfd):
    def started() -> Replica:
        renamed.flags.set({"max_batch_size": "--max-batch-size"})
        served, config = Unloadable({}, [], LoadOptions()), ServerConfig(preprocess_workers=0)
        [job] = replica_jobs(served, [Placement(("cpu",))], config, tmp_path, print_error)
        replica = Replica(job)
        replica.start()
        return replica

    replica = copy_context().run(started)
    with pytest.raises(InputError, match="max_batch_size is 9"):
        replica.receive()
    replica.stop()
    assert capfd.readouterr().err == "vlm: --max-batch-size is 9; give --max-batch-size 2.\n"


def test_a_process_that_sigterm_keeps_from_starting_is_not_ended(monkeypatch):
    def interrupted(process):
        raise SystemExit

    monkeypatch.setattr(SpawnProcess, "start", interrupted)
    with pytest.raises(SystemExit):
        Supervisor([Replica(job) for job in jobs(2)], print).start()


# --- Ray Serve ---
@pytest.mark.parametrize(
    ("options", "device", "ranks", "share"),
    [
        ({}, "cpu", 1, {"num_cpus": 1}),
        ({"replicas": 2}, "cpu", 2, {"num_cpus": 1}),
        ({"replicas": 2, "max_replicas": 16}, "cpu", 1, {"num_cpus": 0.5}),
        ({"replicas": 4}, "cuda", 1, {"num_gpus": 1}),
        ({"replicas": 2, "max_replicas": 8}, "cuda", 2, {"num_gpus": 2}),
    ],
)
def test_ray_sets_apart_what_a_replica_takes(options, device, ranks, share):
    assert replica_share({"CPU": 8.0, "GPU": 4.0}, ReplicaConfig(ray=True, **options), device, ranks) == share


def test_ray_is_not_asked_for_what_it_has_not():
    with pytest.raises(InputError) as caught:
        replica_share({"CPU": 8.0, "GPU": 3.0}, ReplicaConfig(ray=True, replicas=2), "cuda", ranks=2)
    says = "the Ray cluster has 3 GPUs, too few for 2 replicas of 2; give fewer --replicas, or cpu."
    assert str(caught.value) == says


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ray": True, "devices": "all"}, "--devices is for one machine; with --ray, --replicas says how many."),
        (
            {"ray": True, "unresponsive_seconds": 5},
            "--unresponsive-seconds is for one machine; with --ray, Ray Serve watches its replicas.",
        ),
        ({"max_replicas": 2}, "--max-replicas is for --ray; on one machine, --replicas says how many."),
        (
            {"ray": True, "replicas": 3, "max_replicas": 2},
            "--max-replicas is 2, and --replicas is 3; give no fewer.",
        ),
    ],
)
def test_what_ray_does_not_do_is_said(options, says):
    with pytest.raises(InputError) as caught:
        ReplicaConfig(**options)
    assert str(caught.value) == says
