"""Engines that several processes run: started by the first one, by torchrun and by mpirun; and what ends them."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from datetime import timedelta
from pathlib import Path

import pytest

from tests.checkout import ROOT
from tests.kits.cli_kit import call, one_sentence
from tests.kits.media_kit import children
from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir, rebuilt
from tests.kits.models.families import inputs_of
from tests.kits.models.prompted_kit import saved
from tests.kits.ranks import on_ranks
from tests.kits.servers import ft_kit
from tests.kits.servers.server_kit import free_port, until
from vlm.api.model import rank_processes
from vlm.api.pipeline import Pipeline
from vlm.backends.devices import of_rank
from vlm.build.locate import packaged_models
from vlm.config import RuntimeConfig
from vlm.errors import EngineError, InputError
from vlm.parallel.agreement import check_agreement
from vlm.parallel.collectives import Ranks
from vlm.parallel.environment import VARIABLES, LaunchedRank, _of_slurm, launched_rank
from vlm.parallel.mapping import Mapping
from vlm_app.core.load_options import LoadOptions
from vlm_app.server.repository.control import Repositories
from vlm_app.server.repository.loading import Loader

pytestmark = pytest.mark.slow

CPU = RuntimeConfig(device="cpu")
TRANSLATE = ["translate", "--device", "cpu", "--src-lang", "en", "--tgt-lang", "de", "The house is small."]
SCRIPT = """
import sys, vlm
with open(sys.argv[2], "w") as ready:
    pipeline = vlm.load(sys.argv[1], device="cpu")
    print("ready", file=ready, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return engine_dir(tiny.llava(seed=3), tmp_path_factory.mktemp("llava"), max_batch_size=4)


@pytest.fixture(scope="module")
def t5(tmp_path_factory) -> Path:
    return built(tmp_path_factory.mktemp("t5"), "--tp-size")


def built(folder: Path, option: str) -> Path:
    """Builds the packaged model of texts for two ranks."""
    assert call("build", "mini-t5", "-o", folder / "engine", option, "2").exit_code == 0
    return folder / "engine"


def tokens(pipe: Pipeline) -> list[list[int]]:
    found = pipe.generate(inputs_of(pipe), max_new_tokens=8, ignore_eos=True)
    return [out.token_ids for out in found]


@pytest.mark.parametrize(
    "sizes",
    [{"tp_size": 2}, {"pp_size": 2}, {"tp_size": 2, "pp_size": 2}],
    ids=str,
)
def test_processes_give_the_tokens_of_one(whole, sizes):
    expected, split = tokens(Pipeline(whole, CPU)), rebuilt(whole, max_batch_size=4, **sizes)
    with contextlib.closing(Pipeline(split, CPU)) as pipe:
        assert tokens(pipe) == expected == tokens(pipe)
        pids = [process.pid for process in pipe._others.processes]
        others = [child for child in children(os.getpid()) if child.pid in pids]
        assert len(others) == split.build.num_ranks - 1 and all(other.is_alive() for other in others)
    until(lambda: not any(other.is_alive() for other in others))


@pytest.mark.parametrize("axis", ["tp_size", "pp_size"])
def test_a_rank_that_is_killed_is_said(whole, axis):
    pipe = Pipeline(rebuilt(whole, max_batch_size=4, **{axis: 2}), CPU)
    for process in pipe._others.processes:
        process.kill()
    with pytest.raises(EngineError, match="another rank has ended or cannot be reached"):
        tokens(pipe)
    pipe.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_ranks_end_with_the_first(t5, tmp_path, number):
    ready = tmp_path / "ready"
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, t5, ready], stdin=subprocess.PIPE, cwd=ROOT)
    until(lambda: ready.exists() and ready.read_text())
    others = children(process.pid)
    assert len(others) == 1
    process.send_signal(number)
    process.wait()
    until(lambda: not any(process.is_alive() for process in others))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_first_rank_that_is_killed_amid_the_start_leaves_nothing(t5, tmp_path, number):
    (tmp_path / "tmp").mkdir()
    line = [sys.executable, "-c", SCRIPT, t5, tmp_path / "ready"]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    process = subprocess.Popen(line, stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env=environment)
    until(lambda: list((tmp_path / "tmp").glob("vlm-ranks-*")) and children(process.pid))
    others = children(process.pid)
    process.send_signal(number)
    _, said = process.communicate()  # which ends with all that write to it
    assert said == b"" and list((tmp_path / "tmp").glob("vlm-ranks-*")) == []
    until(lambda: not any(other.is_alive() for other in others))


# a rank whose folder is removed before it has come to its store, and who removes it dawdles
DAWDLER = """
import time
from vlm.api.model import rank_processes as ranks

remove, take = ranks.shutil.rmtree, ranks._take_device
ranks.shutil.rmtree = lambda folder, **options: (remove(folder, **options), time.sleep(2))
ranks._take_device = lambda runtime: (time.sleep(1), take(runtime))[1]
ranks._main()
"""


def test_a_rank_that_finds_no_folder_to_meet_in_ends_at_once(whole, tmp_path):
    (folder := tmp_path / "meeting").mkdir()
    line = [sys.executable, "-c", DAWDLER, folder]
    process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=ROOT)
    process.communicate(pickle.dumps((whole, CPU, 1, 2)), timeout=120)  # the store is waited for 300
    assert process.returncode == -signal.SIGKILL and not folder.exists()


def test_a_rank_that_cannot_start_is_said(whole, monkeypatch):
    monkeypatch.setattr("vlm.api.model.rank_processes.sys.executable", "/bin/false")
    with pytest.raises(EngineError, match="rank 1 of 2 ended while it was started"):
        Pipeline(rebuilt(whole, max_batch_size=4, tp_size=2), CPU)


def test_a_rank_whose_device_is_not_there_is_not_waited_for(whole, monkeypatch):
    devices = [CPU, RuntimeConfig(device="cuda:99")]  # as where a GPU is hidden from that process alone
    monkeypatch.setattr("vlm.api.model.rank_processes.of_rank", lambda runtime, rank, size: devices[rank])
    monkeypatch.setattr("vlm.parallel.process_group.TIMEOUT", timedelta(seconds=5))
    with pytest.raises(EngineError, match="rank 1 of 2 ended while it was started; what it said stands above"):
        Pipeline(rebuilt(whole, max_batch_size=4, tp_size=2), CPU)


@pytest.mark.parametrize("part", ["loaded_model.load_engine", "loaded_model.Processor.from_engine"])
def test_a_load_that_fails_ends_the_other_ranks(whole, monkeypatch, part):
    begun, begin = [], rank_processes.begin
    monkeypatch.setattr(rank_processes, "begin", lambda *arguments: begun.append(begin(*arguments)) or begun[0])

    def fail(*arguments):
        raise EngineError("there is no processor.")

    monkeypatch.setattr(f"vlm.api.model.{part}", fail)
    with pytest.raises(EngineError, match="there is no processor"):
        Pipeline(rebuilt(whole, max_batch_size=4, tp_size=2), CPU)
    [others] = begun
    assert [process.poll() is None for process in others.processes] == [False]


def test_devices_that_are_not_there(whole, monkeypatch):
    split = rebuilt(whole, max_batch_size=4, tp_size=2)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    with pytest.raises(InputError, match="the engine is built for 2 GPUs, 1 are visible; build it for fewer, or give"):
        Pipeline(split, RuntimeConfig(device="cuda"))
    with pytest.raises(
        InputError, match="device is cuda:0, 2 ranks take a GPU each; give cuda, cpu, or each one's with"
    ):
        Pipeline(split, RuntimeConfig(device="cuda:0"))


def test_processes_that_split_the_encoder_in_pairs(tmp_path):
    build = ("build", "mini-t5", "-o", tmp_path / "engine", "--tp-size", "4", "--encoder-tp-size", "2")
    assert call(*build).exit_code == 0
    found = call(*TRANSLATE, "--model", tmp_path / "engine")
    assert found.exit_code == 0 and found.stdout.strip() == "Das Haus ist klein."
    assert re.search(r"mapping +encoder_tp 2, pp 1, tp 4", call("inspect", tmp_path / "engine").stdout)


def test_the_command_line(t5):
    found = call(*TRANSLATE, "--model", t5)
    assert found.exit_code == 0 and found.stdout.strip() == "Das Haus ist klein."
    said = call("inspect", t5).stdout
    assert re.search(r"mapping +pp 1, tp 2", said) and re.search(r"weights a rank \d", said)
    # three matrices in four are cut in halves
    whole = sum(file.stat().st_size for file in t5.rglob("rank*.safetensors"))
    assert 0.5 * whole <= sum(file.stat().st_size for file in t5.rglob("rank0.safetensors")) < 0.52 * whole


def test_the_command_line_of_stages(tmp_path):
    engine = built(tmp_path, "--pp-size")
    found = call(*TRANSLATE, "--model", engine)
    assert found.exit_code == 0 and found.stdout.strip() == "Das Haus ist klein."
    described = json.loads(call("inspect", engine, "--json").stdout)
    assert described["mapping"] == {"tp": 1, "pp": 2} and described["build"]["pp_size"] == 2
    layers, weights = zip(*((stage["layers"], stage["weights"]) for stage in described["stages"]), strict=True)
    assert layers[0][0] == 0 and layers[1][0] == layers[0][1] + 1
    sizes = [sum(file.stat().st_size for file in engine.rglob(f"rank{rank}.safetensors")) for rank in range(2)]
    assert [*weights] == [[size] for size in sizes] and described["memory"]["weights_a_rank"] == max(sizes)
    said = call("inspect", engine).stdout
    assert re.search(r"stage 1 +decoder layers \d to \d, weights of its ranks \d", said)


def test_a_server_ends_with_its_ranks(t5, tmp_path):
    """Answers as one process does; once a rank is gone it says so, and ends for its supervisor to start it again."""
    address = f"127.0.0.1:{free_port()}"
    line = [sys.executable, "-m", "vlm_app.cli.main", "serve", str(t5), "--device", "cpu", "--port", address[10:]]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(line, stderr=said)
    try:
        until(lambda: "serving" in (tmp_path / "said").read_text())
        assert ask(address) == "Das Haus ist klein."
        for child in children(process.pid):
            if "rank_processes" in Path(f"/proc/{child.pid}/cmdline").read_text():
                os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(OSError):
            ask(address)
        assert process.wait() == 70
    finally:
        process.kill()
    sentence = (tmp_path / "said").read_text().splitlines()[-1]
    assert sentence.endswith("this one cannot go on; start all of them again; start the server again.")


@pytest.mark.parametrize("kind", ["engine", "folder"])
def test_a_repository_says_among_how_many_ranks(t5, tmp_path, kind, monkeypatch):
    """FasterTransformer's tensor_para_size: of an engine its own, of another folder what it is built for."""
    pytest.importorskip("tritonclient.grpc", reason="the extra triton is not installed")
    monkeypatch.setenv("VLM_CACHE", str(tmp_path / "cache"))
    path = t5 if kind == "engine" else packaged_models()["mini-t5"]
    config = ft_kit.t5(model_checkpoint_path=str(path), data_type="fp32", tensor_para_size="2")
    models = str(ft_kit.repository(tmp_path / "models", t5=config))
    repositories = Repositories([models], Loader(LoadOptions(runtime={"device": "cpu"})))
    repositories.scan()
    with contextlib.closing(repositories.load("t5")) as pipe:
        assert pipe.engine.build.tp_size == 2 and len(pipe._others.processes) == 1
        assert pipe.generate("translate English to German: The house is small.").text == "Das Haus ist klein."


def ask(address: str) -> str:
    body = {"text_input": "translate English to German: The house is small."}
    request = urllib.request.Request(
        f"http://{address}/v2/models/engine/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["text_output"]


def test_who_has_started_this_process():
    assert launched_rank({}) is None
    torchrun = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
    assert launched_rank(torchrun) == LaunchedRank("torchrun", 1, 4, 1)
    assert launched_rank(torchrun | {"WORLD_SIZE": "1"}) is None, "it is alone"
    assert launched_rank({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "0"}) == LaunchedRank(
        "srun", 3, 8, 0
    )
    with pytest.raises(EngineError, match="RANK, WORLD_SIZE, LOCAL_RANK must be numbers, as torchrun sets them"):
        launched_rank(torchrun | {"RANK": "one"})
    for rank in ("-1", "4"):
        with pytest.raises(EngineError, match=f"RANK is {rank} and WORLD_SIZE 4: ranks are 0 to 3; set them as torch"):
            launched_rank(torchrun | {"RANK": rank})


@pytest.mark.parametrize(
    ("starter", "variables", "said"),
    [
        ("torchrun", {}, "environment variable MASTER_ADDR expected, but not set"),
        ("torchrun", {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "a"}, "invalid literal for int"),
        ("srun", {"MASTER_PORT": "a"}, "invalid literal for int"),
        ("srun", {"SLURM_JOB_ID": "a"}, "invalid literal for int"),
        ("torchrun", {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "TAKEN"}, "address already in use"),
        ("srun", {"MASTER_PORT": "TAKEN"}, "address already in use"),
    ],
)
def test_ranks_that_cannot_meet_say_why(t5, monkeypatch, starter, variables, said):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        for name, value in zip(VARIABLES[starter], (0, 2, 0), strict=True):
            monkeypatch.setenv(name, str(value))
        for name, value in variables.items():
            monkeypatch.setenv(name, value.replace("TAKEN", str(taken.getsockname()[1])))
        sentence = one_sentence(call(*TRANSLATE, "--model", t5))
    assert sentence.startswith("vlm: rank 0 of 2 has not met the others: ") and said in sentence


@pytest.mark.parametrize("starter", ["torchrun", "srun"])
@pytest.mark.parametrize(("rank", "said"), [(0, "1/2 clients joined"), (1, "has timed out")])
def test_a_rank_that_is_missing_is_said(monkeypatch, starter, rank, said):
    monkeypatch.setattr("vlm.parallel.environment.FIRST_WAITS", timedelta(seconds=1))
    monkeypatch.setattr("vlm.parallel.environment.OTHERS_TRY", timedelta(seconds=0.1))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    for name, value in zip(VARIABLES[starter], (rank, 2, rank), strict=True):
        monkeypatch.setenv(name, str(value))
    with pytest.raises(EngineError, match=f"rank {rank} of 2 has not met the others: .*{said}.*; start all of them"):
        LaunchedRank(starter, rank, 2, rank).store()


def test_steps_of_slurm_that_run_at_a_time_meet_at_ports_of_their_own():
    steps = [{"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)} for job in (100, 101) for step in range(20)]
    assert len({_of_slurm(step) for step in steps}) == len(steps)
    assert _of_slurm({**steps[0], "MASTER_ADDR": "a", "MASTER_PORT": "5"}) == ("a", 5)


def _documented(starter: str, engine: Path) -> list[str]:
    """Returns the command of docs/parallel.md, for an engine."""
    page = (ROOT / "docs" / "parallel.md").read_text()
    command = page.split(f"<!-- {starter} -->")[1].split("```bash")[1].split("```")[0]
    return shlex.split(command.replace("t5.engine", str(engine)))


@pytest.mark.distributed
@pytest.mark.parametrize("option", ["--tp-size", "--pp-size"])
@pytest.mark.parametrize("starter", ["mpirun", "torchrun"])
def test_the_page_s_commands(tmp_path, starter, option):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    line = _documented(starter, built(tmp_path, option))
    line[1:1] = ["--oversubscribe"] if starter == "mpirun" else []  # there may be one core
    done = subprocess.run(line, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "Das Haus ist klein."


SRUN = """#!{python}
import os, subprocess, sys
size = 2
ranks = [
    subprocess.Popen(
        sys.argv[1:],
        env=os.environ | {{"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(size), "SLURM_LOCALID": str(rank)}},
    )
    for rank in range(size)
]
sys.exit(max(rank.wait() for rank in ranks))
"""


@pytest.mark.distributed
def test_the_page_s_job_of_slurm(t5, tmp_path, monkeypatch):
    """Starts as many processes as the engine has ranks, as srun does."""
    srun, texts = tmp_path / "bin" / "srun", tmp_path / "texts.txt"
    srun.parent.mkdir()
    srun.write_text(SRUN.format(python=sys.executable))
    srun.chmod(0o755)
    texts.write_text("The house is small.\n")
    job = (ROOT / "docs" / "parallel.md").read_text().split("<!-- file: ranks.sbatch -->")[1]
    script = job.split("```bash\n")[1].split("```")[0]
    monkeypatch.setenv("PATH", f"{srun.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    environment = {"ENGINE": str(t5), "DEVICE": "cpu", "SLURM_JOB_ID": str(os.getpid())}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    subprocess.run(["bash", "-eu", "-c", script], cwd=tmp_path, check=True, timeout=600)
    assert (tmp_path / "translations.txt").read_text().strip() == "Das Haus ist klein."


@pytest.mark.parametrize("name", ["vlm", "torch", "the engine"])
def test_ranks_that_are_not_alike(name):
    own = {"vlm": "0.1.0", "torch": "2.15.0", "the engine": "a1"}

    def check(ranks: Ranks) -> str:
        try:
            check_agreement(ranks.hosts, own | ({name: "another"} if ranks.rank == 1 else {}))
        except EngineError as error:
            return str(error)
        return ""

    said = on_ranks(Mapping(3), check)
    assert f"ranks must be alike: {name} is another, the first rank's {own[name]}; install the same versions" in said[1]
    assert all("another rank has something else than the first one" in each for each in (said[0], said[2]))
    assert on_ranks(Mapping(pp=2), lambda ranks: check_agreement(ranks.hosts, own)) == [None, None]


@pytest.mark.distributed
def test_a_number_that_the_engine_is_not_built_for(t5):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    line = ["torchrun", "--nproc-per-node", "3", "--no-python", "vlm", *TRANSLATE, "--model", str(t5)]
    done = subprocess.run(line, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode
    assert "torchrun has started 3 processes" in done.stderr and "is built for 2 ranks; start 2, or" in done.stderr


@pytest.mark.parametrize(
    "line",
    [
        ["translate", "--src-lang", "en", "--tgt-lang", "de", "The house is small."],
        ["run", "--text", "translate English to German: The house is small."],
    ],
    ids=lambda line: line[0],
)
def test_a_device_for_each_rank(t5, line):
    found = call(*line, "--model", t5, "--devices", "cpu, cpu")
    assert found.exit_code == 0 and found.stdout.strip() == "Das Haus ist klein."


def test_a_decoder_that_was_split_on_disk(tmp_path):
    saved("llama", tmp_path / "hf")
    for line in (
        ("convert", tmp_path / "hf", "-o", tmp_path / "checkpoint", "--tp-size", 2),
        ("build", tmp_path / "checkpoint", "-o", tmp_path / "ranks", "--tp-size", 2, "--workers", 2),
        ("build", tmp_path / "hf", "-o", tmp_path / "whole"),
    ):
        assert call(*line).exit_code == 0
    line = ("generate", "w1 w5 w9", "--raw-prompt", "--max-new-tokens", 12, "--json")
    expected = json.loads(call(*line, "--model", tmp_path / "whole", "--device", "cpu").stdout)
    found = json.loads(call(*line, "--model", tmp_path / "ranks", "--devices", "cpu,cpu").stdout)
    assert found["token_ids"] == expected["token_ids"] and len(found["token_ids"]) > 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--devices", "cpu"], "--devices names 1 device, the engine is built for 2 ranks; name 2, or build it for 1"),
        (["--devices", "cpu,cpu,cpu"], "names 3 devices, the engine is built for 2 ranks; name 2, or build it for 3"),
        (["--devices", "cuda:0,cpu"], "--devices is cuda:0,cpu; give the CPU alone, or GPUs alone"),
        (["--devices", "cuda:1,cuda:1"], "--devices is cuda:1,cuda:1; name each GPU once"),
        (["--devices", "cuda:0,cuda:2"], "device cuda:2 is not there: 2 CUDA devices are visible"),
        (["--devices", "cpu,tpu"], "--devices names 'tpu'; allowed are auto, cpu, cuda and cuda:N"),
        (["--devices", ""], "--devices names ''; allowed are auto"),
        (["--devices", "cpu,cpu", "--device", "cpu"], "--device and --devices are both given, leave one"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_devices_that_do_not_suit(t5, monkeypatch, options, words):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("vlm_app.core.load_options.start_context", lambda device: None)
    found = call("run", "--text", "two", "--model", t5, *options)
    assert found.exit_code == 2 and words in " ".join(found.stderr.split())


def test_devices_of_an_engine_that_one_process_runs(whole):
    expected = tokens(Pipeline(whole, CPU))
    assert tokens(Pipeline(whole, RuntimeConfig(devices="cpu"))) == expected
    with pytest.raises(
        InputError, match="names 2 devices, the engine is built for 1 rank; name 1, or build it for 2: "
    ):
        Pipeline(whole, RuntimeConfig(devices="cpu,cpu"))


def test_the_ranks_devices_are_their_own_in_order(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    listed = [of_rank(RuntimeConfig(devices="cuda:3,cuda:1"), rank, 2) for rank in range(2)]
    assert listed == [RuntimeConfig(device="cuda:3"), RuntimeConfig(device="cuda:1")]
    every = [of_rank(RuntimeConfig(devices="all"), rank, 4).device for rank in range(4)]
    assert every == [f"cuda:{number}" for number in range(4)]
