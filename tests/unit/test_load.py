"""vlm.load: arguments beside a RuntimeConfig."""

from __future__ import annotations

import pytest

import vlm
from tests import tiny
from vlm.api import load
from vlm.artifacts.checkpoint import Checkpoint
from vlm.build.builder import build_engine
from vlm.config import BuildConfig, RuntimeConfig
from vlm.convert.folder import convert_folder
from vlm.errors import ConfigError, InputError, LimitError


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


def test_the_batch_of_the_runtime_is_built_for(loaded, checkpoint, tmp_path):
    assert loaded(runtime=RuntimeConfig("cpu", max_batch_size=9))[0].max_batch_size == 9
    assert loaded(runtime=RuntimeConfig("cpu"))[0].max_batch_size == 8
    engine = build_engine(Checkpoint.open(checkpoint), tmp_path / "engine", BuildConfig(max_batch_size=8)).path
    with pytest.raises(LimitError, match="was built for max_batch_size 8, asked is max_batch_size 9; rebuild it"):
        vlm.load(engine, runtime=RuntimeConfig("cpu", max_batch_size=9))


@pytest.mark.parametrize("name", ["threads", "max_batch_size", "max_kv_blocks"])
def test_runtime_numbers(name):
    with pytest.raises(ConfigError, match=f"{name} is 0, it must be at least 1"):
        RuntimeConfig(**{name: 0})
