"""A backend of a package of its own (tests/packages/eager_backend): listed, built for, run and served, and nothing of
vlm/ knows of it. docs/adding-a-backend.md shows the package."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.checkout import ROOT
from tests.kits.cli_kit import call
from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.backends import installed
from vlm.config import RuntimeConfig
from vlm.errors import EngineError, InputError
from vlm_app.core.load_options import LoadOptions
from vlm_app.server.repository.loading import Loader

PACKAGE = ROOT / "tests" / "packages" / "eager_backend"
PAGE = ROOT / "docs" / "adding-a-backend.md"
TEXT = "translate English to German: The old ship is small."


@pytest.fixture(autouse=True)
def package(monkeypatch):
    """Installs the package: a folder with its code and metadata, on Python's path."""
    caches = (installed._entries, installed._load, installed.backends)
    monkeypatch.syspath_prepend(PACKAGE)
    for cached in caches:
        cached.cache_clear()
    yield
    sys.modules.pop("eager_backend", None)
    for cached in caches:
        cached.cache_clear()


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("eager") / "engine"


def test_it_builds_by_the_command_line_and_writes_the_same_text(built):
    made = call("build", "mini-t5", "-o", built, "--backend", "eager")
    assert made.exit_code == 0, made.stderr
    engine = EngineDir.open(built)
    assert engine.manifest.backend == "eager" and "decoder/weights.npz" in engine.manifest.files
    found, want = (call("run", "--model", model, "--text", TEXT, "--device", "cpu") for model in (built, "mini-t5"))
    assert found.exit_code == 0 and found.stdout == want.stdout and found.stdout.strip()
    shown = call("inspect", built)
    assert shown.exit_code == 0 and "backend eager" in shown.stdout


def test_it_is_served_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VLM_CACHE", str(tmp_path))
    options = LoadOptions.from_dict({"backend": "eager", "device": "cpu", "max_batch_size": 2})
    pipeline = Loader(options, warm=False).model("mini-t5")
    assert pipeline.engine.build.backend == "eager" and pipeline.engine.path.is_relative_to(tmp_path)
    assert not pipeline.llm.executor.runner.graphs and pipeline.generate(TEXT, max_new_tokens=4).token_ids


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("build", "mini-t5", "-o", "{}", "--backend", "eager", "--dtype", "bfloat16"),
            "eager does not compute in",
        ),
        (("build", "mini-t5", "-o", "{}", "--backend", "eager", "--quantization", "int8"), "eager does not take"),
        (("build", "mini-t5", "-o", "{}", "--backend", "keen"), "allowed are torch, eager, onnxruntime, tensorrt"),
        (("run", "--model", "mini-t5", "--text", TEXT, "--backend", "eager", "--device", "cuda"), "device"),
    ],
)
def test_what_it_does_not_take_is_one_sentence(arguments, says, tmp_path):
    found = call(*(argument.format(tmp_path / "out") for argument in arguments))
    assert found.exit_code == 2 and says in found.stderr and len(found.stderr.splitlines()) == 1


def test_its_own_refusals_are_heard(built, monkeypatch):
    engine = EngineDir.open(built)
    with pytest.raises(InputError, match="an eager engine runs on cpu"):
        Pipeline(engine, RuntimeConfig("cuda"))
    monkeypatch.setattr("eager_backend.FORMAT", "2")
    with pytest.raises(EngineError, match="has format 1 of eager, this one reads 2"):
        Pipeline(engine, RuntimeConfig("cpu"))


def test_the_page_shows_this_package():
    page = PAGE.read_text(encoding="utf-8")
    blocks = dict(re.findall(r"```(\w+)\n(.*?)```", page, re.DOTALL))
    assert blocks["python"] == (PACKAGE / "eager_backend.py").read_text(encoding="utf-8")
    entry = (PACKAGE / "eager_backend-1.0.dist-info" / "entry_points.txt").read_text().splitlines()[1]
    assert entry.replace("eager_backend:EagerBackend", '"eager_backend:EagerBackend"') in blocks["toml"]
    methods = {name for name in vars(installed.Backend) if not name.startswith("_")}
    assert not {name for name in methods if f"`{name}" not in page}, "the page leaves parts of the protocol out"
