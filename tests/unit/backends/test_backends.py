"""Backends are found, named and refused by one protocol."""

from __future__ import annotations

import ast
import dataclasses
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import vlm
from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.artifacts.native.manifest import Manifest
from vlm.backends import installed
from vlm.backends.base import Backend, Preference
from vlm.backends.installed import backend, backend_of, backends, checked_backend, names
from vlm.backends.selection import pick
from vlm.config import BuildConfig
from vlm.errors import ConfigError, EngineError

VLM = Path(vlm.__file__).parent
TORCH = EntryPoint("torch", "vlm.backends.torch:TorchBackend", installed.GROUP)


def test_the_default_comes_first_and_each_says_what_it_is():
    assert names()[0] == BuildConfig.backend and {"torch", "onnxruntime", "tensorrt"} <= set(names())
    for each in backends():
        assert isinstance(each, Backend) and each is backend(each.name) and each.description and each.devices


def test_one_that_does_not_load_costs_the_others_nothing(monkeypatch):
    broken = EntryPoint("broken", "vlm.backends.no_such_module:Backend", installed.GROUP)
    monkeypatch.setattr(installed, "_entries", lambda: {"torch": TORCH, "broken": broken})
    assert names() == ("torch", "broken") and [each.name for each in backends.__wrapped__()] == ["torch"]
    with pytest.raises(EngineError, match=r"backend broken is installed but does not load .*no_such_module.*again"):
        backend("broken")


def test_a_listing_imports_nothing_that_builds_or_runs():
    heavy = {"torch", "onnx", "onnxruntime", "tensorrt", "tensorrt_rtx"}
    code = "import sys; from vlm_app.core import backend_names as b; b.described_backends(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not heavy & set(loaded)


def test_a_build_is_checked_with_every_reason():
    assert checked_backend(BuildConfig()).name == "torch"
    with pytest.raises(ConfigError, match=r"backend is 'trt', allowed are torch, onnxruntime, tensorrt"):
        checked_backend(BuildConfig(backend="trt"))
    build = BuildConfig("bfloat16", backend="onnxruntime", quantization="int8", target=("sm80",))
    with pytest.raises(ConfigError, match=r"only the backend tensorrt.*; .*needs dtype float32.*; .*not compute in bf"):
        checked_backend(build)


def test_auto_says_why_a_higher_rank_was_left_out(monkeypatch):
    no = Preference(takes=False, reason="it is asleep")
    monkeypatch.setattr("vlm.backends.onnxruntime.backend.OnnxRuntimeBackend.preference", lambda *_: no)
    assert pick("cpu") == ("torch", "it is asleep")
    monkeypatch.setattr("vlm.backends.torch.TorchBackend.preference", lambda *_: None)
    with pytest.raises(EngineError, match="no installed backend runs on cpu: it is asleep"):
        pick("cpu")


def test_an_engine_of_a_backend_that_is_not_here_says_so(tmp_path):
    engine = engine_dir(tiny.gpt2(), tmp_path)
    dataclasses.replace(engine.manifest, backend="eager").write(engine.path)
    assert Manifest.read(engine.path).build.backend == "eager"
    says = r"was built for the backend 'eager', which is not installed; installed are torch, onnxruntime, tensorrt"
    with pytest.raises(EngineError, match=says):
        backend_of(EngineDir.open(engine.path))
    with pytest.raises(EngineError, match=says):
        vlm.load(engine.path, device="cpu")


def compared(tree: ast.AST) -> list[str]:
    """Texts that a comparison or a match has."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Compare | ast.MatchValue)]
    parts = (part for node in found for part in ast.walk(node))
    return [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def test_nothing_outside_of_their_folder_decides_by_a_backends_name():
    files = [path for path in VLM.rglob("*.py") if "backends" not in path.relative_to(VLM).parts]
    assert len(files) > 50
    by_name = [(path, text) for path in files for text in compared(ast.parse(path.read_text())) if text in names()]
    assert not by_name
