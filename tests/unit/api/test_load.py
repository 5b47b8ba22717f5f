"""vlm.load: arguments beside a RuntimeConfig, and files that are hashed while they are loaded."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import vlm
from tests.checkout import ROOT
from tests.kits.models import tiny
from vlm.api import load, pipeline
from vlm.api.model import loaded_model
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.backends.torch import TorchBackend
from vlm.build.builder import build_engine
from vlm.config import BuildConfig, RuntimeConfig
from vlm.convert.folder import convert_folder
from vlm.errors import ConfigError, EngineError, InputError, LimitError, OutOfMemoryError
from vlm.processing.processor import ProcessorFiles


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("load")
    tiny.t5().save_pretrained(folder / "hf")
    return convert_folder(folder / "hf", folder / "checkpoint").path


@pytest.fixture
def loaded(checkpoint, tmp_path_factory, monkeypatch):
    """Loads with the options -> (what the engine is built for, the configuration it is run with)."""
    cache = tmp_path_factory.getbasetemp() / "load-cache"
    monkeypatch.setattr(load, "Pipeline", lambda engine, runtime: (engine.build, runtime))
    return lambda **options: vlm.load(checkpoint, cache_dir=cache, **options)


def test_arguments_override_the_runtime_and_leave_the_rest(loaded):
    runtime = RuntimeConfig(device="cpu", burst=3, max_batch_size=2, threads=1)
    assert loaded(runtime=runtime)[1] == runtime
    changed = loaded(runtime=runtime, device="auto")[1]
    assert changed == RuntimeConfig(device="auto", burst=3, max_batch_size=2, threads=1)
    changed = loaded(runtime=runtime, max_batch_size=5)[1]
    assert changed == RuntimeConfig(device="cpu", burst=3, max_batch_size=5, threads=1)
    assert loaded(device="cpu", max_batch_size=3)[1] == RuntimeConfig(device="cpu", max_batch_size=3)
    with pytest.raises(InputError, match="device is 'tpu'"):
        loaded(runtime=runtime, device="tpu")
    with pytest.raises(InputError, match=r"^runtime is {'device': 'cpu'}; give a vlm.RuntimeConfig\.$"):
        loaded(runtime={"device": "cpu"})
    assert loaded(device="cpu", lora={1: "folder"})[1].lora == ("1=folder",)


def test_the_batch_of_the_runtime_is_built_for(loaded, checkpoint, tmp_path):
    assert loaded(runtime=RuntimeConfig("cpu", max_batch_size=9))[0].max_batch_size == 9
    assert loaded(runtime=RuntimeConfig("cpu"))[0].max_batch_size == 8
    engine = build_engine(Checkpoint.open(checkpoint), tmp_path / "engine", BuildConfig(max_batch_size=8)).path
    with pytest.raises(LimitError, match="was built for max_batch_size 8, asked is max_batch_size 9; rebuild it"):
        vlm.load(engine, runtime=RuntimeConfig("cpu", max_batch_size=9))


@pytest.mark.parametrize(
    ("config", "values", "words"),
    [
        (RuntimeConfig, {"devices": ("cpu", "cpu")}, r"devices is \('cpu', 'cpu'\), it must be a string"),
        (RuntimeConfig, {"max_loras": "2"}, "max_loras is '2', it must be a whole number"),
        (RuntimeConfig, {"burst": 1.5, "threads": 0}, r"^burst is 1.5, it must be a whole number\.$"),
        (RuntimeConfig, {"cuda_graphs": "yes"}, "cuda_graphs is 'yes', it must be true or false"),
        (RuntimeConfig, {"lora": {"a": "b"}}, "lora is {'a': 'b'}, it must be a list of strings"),
        (RuntimeConfig, {"lora": "a=b"}, "lora is 'a=b', it must be a list of strings"),
        (BuildConfig, {"max_batch_size": "8"}, "max_batch_size is '8', it must be a whole number"),
        (BuildConfig, {"target": "sm80"}, "target is 'sm80', it must be a list of strings"),
        (BuildConfig, {"quantization": 8}, "quantization is 8, it must be a string"),
    ],
)
def test_values_of_another_type(config, values, words):
    with pytest.raises(ConfigError, match=words):
        config(**values)


def test_lists_and_paths_are_taken():
    assert BuildConfig(ignore=["head"], target=["sm80"]) and RuntimeConfig(prompt_table=Path("x"), lora=["a=b"])


def test_a_closed_pipeline_takes_no_more(engine):
    model = vlm.load(engine, device="cpu")
    one = {"encoder_input_ids": [5, 6, 1]}
    assert model.generate(one, max_new_tokens=2).token_ids
    model.close()
    model.close()
    calls = [
        lambda: model.generate(one, max_new_tokens=2),
        lambda: model.generate([one] * 40, max_new_tokens=2),
        lambda: next(model.as_completed([one])),
        lambda: model.encode(one),
        lambda: model.complete([model.request(one, max_new_tokens=2)]),
    ]
    for call in calls:
        with pytest.raises(InputError, match=r"this pipeline is closed; load the model again, with vlm\.load\(\)"):
            call()


def test_a_block_closes_a_pipeline(engine):
    with vlm.load(engine, device="cpu") as model, pytest.raises(ZeroDivisionError), model:
        raise ZeroDivisionError
    with pytest.raises(InputError, match="is closed"):
        model.generate({"encoder_input_ids": [5, 6, 1]})


FORKING = """
import os, sys, vlm
model = vlm.load(sys.argv[1], device="cpu", runtime=vlm.RuntimeConfig(threads=2))
one = {"encoder_input_ids": [5, 6, 1] * 100}
print(model.generate(one, max_new_tokens=3).token_ids, flush=True)
if not os.fork():
    try:
        model.generate(one)
    except vlm.InputError as error:
        print(error)
    print(vlm.load(sys.argv[1], device="cpu").generate(one, max_new_tokens=3).token_ids, flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_forked_process_loads_a_model_of_its_own(engine):
    """It waited for threads that were not there."""
    line = [sys.executable, "-c", FORKING, str(engine)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=100)
    tokens, refusal, again = done.stdout.splitlines()
    assert refusal == "this model was loaded in another process; load it in each, with vlm.load()."
    assert tokens == again and "it computes with one" in done.stderr


@pytest.mark.parametrize("name", ["threads", "max_batch_size", "max_kv_blocks"])
def test_runtime_numbers(name):
    with pytest.raises(ConfigError, match=f"{name} is 0, it must be at least 1"):
        RuntimeConfig(**{name: 0})


@pytest.fixture
def engine(checkpoint, tmp_path) -> Path:
    return build_engine(Checkpoint.open(checkpoint), tmp_path / "engine", BuildConfig()).path


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("place", [-1, 9])  # a weight, and what says where weights lie
def test_an_edited_file_is_told_of_whether_it_loads_or_not(engine, monkeypatch, place):
    closed, close = [], pipeline.Pipeline.close
    monkeypatch.setattr(pipeline.Pipeline, "close", lambda self: closed.append(True) or close(self))
    flip(engine / "decoder/rank0.safetensors", place)
    with pytest.raises(EngineError, match=r"is not as it was built: decoder/rank0.safetensors was edited; rebuild it"):
        vlm.load(engine, device="cpu")
    assert closed == [True] * (place == -1)


def test_what_else_is_wrong_with_a_sound_engine_is_told(engine, monkeypatch):
    def fail(*arguments):
        raise OutOfMemoryError("there is no room.")

    monkeypatch.setattr(loaded_model, "load_engine", fail)
    with pytest.raises(OutOfMemoryError, match="there is no room"):
        vlm.load(engine, device="cpu")


def test_files_that_are_run_are_hashed_before(engine, monkeypatch):
    monkeypatch.setattr(TorchBackend, "loads_data_alone", False)
    monkeypatch.setattr(load, "Pipeline", lambda *arguments: pytest.fail("it was loaded"))
    flip(engine / "decoder/rank0.safetensors", -1)
    with pytest.raises(EngineError, match="was edited"):
        vlm.load(engine, device="cpu")


def test_processor_files_are_read_while_weights_are_loaded(engine, monkeypatch):
    both, load_engine, read = threading.Barrier(2, timeout=60), loaded_model.load_engine, ProcessorFiles.read

    def meeting(function):
        def call(*arguments):
            both.wait()
            return function(*arguments)

        return call

    monkeypatch.setattr(loaded_model, "load_engine", meeting(load_engine))
    monkeypatch.setattr(ProcessorFiles, "read", staticmethod(meeting(read)))
    assert vlm.load(engine, device="cpu").generate(input_ids=[5, 6, 1], max_new_tokens=2).token_ids
