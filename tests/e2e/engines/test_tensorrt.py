"""Models -> engines of TensorRT plans, and what a machine says that cannot run them. Nothing runs: there is no GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorrt_rtx_bindings", reason="needs pip install 'vlm-runtime[tensorrt-rtx]'")


import vlm
from tests.kits.cli_kit import call
from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir, rebuilt
from tests.parity.vision_language import test_vila as vila
from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.backends.onnxruntime.session import OnnxGraph
from vlm.backends.tensorrt.plan_info import PlanInfo
from vlm.build.builder import build_engine
from vlm.build.random_checkpoint import random_checkpoint
from vlm.build.store import resolve
from vlm.config import BuildConfig, RuntimeConfig
from vlm.convert.folder import convert_folder
from vlm.errors import EngineError, InputError
from vlm.layers.quant.methods import METHODS

pytestmark = pytest.mark.slow

EXHAUSTIVE = pytest.mark.exhaustive
ONE = {"num_hidden_layers": 1}  # test_onnx.py has graphs of several
MODELS = {
    "nougat": (lambda: tiny.nougat(layers=1), {"visual", "cross", "decoder"}),
    "t5": (lambda: tiny.t5(num_layers=1), {"encoder", "cross", "decoder"}),
    "bart": (lambda: tiny.bart(encoder_layers=1, decoder_layers=1), {"encoder", "cross", "decoder"}),
    "llama": (lambda: tiny.llama(**ONE), {"decoder"}),
    "opt": (lambda: tiny.opt(**ONE), {"decoder"}),
    "gpt2": (lambda: tiny.gpt2(n_layer=1), {"decoder"}),
    "llava": (lambda: tiny.llava(text=ONE), {"visual", "decoder"}),
    "blip2": (tiny.blip2, {"visual", "decoder"}),
    "blip2-t5": (lambda: tiny.blip2("t5"), {"visual", "encoder", "cross", "decoder"}),
    "starcoder": (lambda: tiny.gpt2(multi_query=True, n_layer=1), {"decoder"}),
    "vila-siglip": (vila.SHAPES["VILA-1.5: SigLIP, cells of an odd grid"], {"visual", "decoder"}),
    "vila-clip": (vila.SHAPES["CLIP, MLP"], {"visual", "decoder"}),
}
ONE_BILLION = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 8192, "rms_norm_eps": 1e-5,
    "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 1024,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setenv("VLM_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def engine(tmp_path_factory) -> EngineDir:
    """With the checkpoint that it was built from beside it."""
    return engine_dir(
        tiny.llama(), tmp_path_factory.mktemp("llama"), backend="tensorrt", target=("sm80", "sm86"), dtype="float16"
    )


def test_the_manifest_says_what_may_run_it(engine):
    read = EngineDir.open(engine.path)
    assert read.build == BuildConfig("float16", 8, 128, None, "tensorrt", ("sm80", "sm86"))
    info = PlanInfo.from_manifest(read.manifest.built_for)
    assert info.library == "tensorrt_rtx" and info.targets == ("sm80", "sm86") and info.version
    assert set(read.manifest.files) == {"decoder/rank0.plan", "processor/generation_config.json"}
    assert not list(engine.path.rglob("*onnx*"))


def test_a_machine_without_a_gpu_refuses_before_it_reads(engine, monkeypatch):
    monkeypatch.setattr("vlm.backends.tensorrt.session.PlanGraph", None)  # not even touched
    with pytest.raises(EngineError, match=r"for sm80, sm86, this machine has no CUDA GPU.*vlm build MODEL -o .*torch"):
        vlm.load(engine.path)
    with pytest.raises(InputError, match="a tensorrt engine runs on cuda"):
        vlm.load(engine.path, device="cpu")
    result = call("inspect", engine.path)
    assert result.exit_code == 0 and "backend tensorrt, target sm80, sm86" in result.stdout


def test_plans_are_what_the_executor_runs(engine, monkeypatch):
    """Here ONNX Runtime runs the graphs that the plans were made of, in their place."""
    same = rebuilt(engine, backend="onnxruntime", dtype="float16")
    opened = []

    def graph(plan, io, library, device):
        opened.append((plan, library.name))
        return OnnxGraph(same.path / plan.parent.name / "model.onnx", io, threads=1)

    monkeypatch.setattr("vlm.backends.tensorrt.engine.check_runnable", lambda *_: None)
    monkeypatch.setattr("vlm.backends.tensorrt.engine.PlanGraph", graph)
    pipes = [Pipeline(one, RuntimeConfig(threads=1, max_prefill_tokens=10**6)) for one in (engine, same)]
    assert opened == [(engine.path / "decoder/rank0.plan", "tensorrt_rtx")]
    prompts = [{"decoder_prompt_token_ids": ids} for ids in ([5, 6, 7], [9], [4] * 20)]
    ours, theirs = ([out.token_ids for out in pipe.generate(prompts, max_new_tokens=6)] for pipe in pipes)
    assert ours == theirs and len(ours[0]) == 6
    assert pipes[0].llm.scheduler.config.max_prefill_tokens == RuntimeConfig.max_prefill_tokens


def test_nothing_is_built_to_be_run_where_it_cannot():
    with pytest.raises(EngineError, match=r"runs on a CUDA GPU, this machine has none.*--target sm89"):
        vlm.load("mini-t5", backend="tensorrt")


def test_cached_plans_belong_to_a_gpu_and_a_version(engine, monkeypatch):
    built = []
    monkeypatch.setattr(
        "vlm.build.engine_cache._build", lambda source, out, build, progress: built.append((out, build.target))
    )

    def cached(gpu: str, version: str):
        monkeypatch.setattr("vlm.backends.tensorrt.targets.this_gpu", lambda: gpu)
        monkeypatch.setattr("vlm.backends.tensorrt.library.versions", lambda: {"tensorrt_rtx": version})
        return resolve(engine.path.parent / "checkpoint", backend="tensorrt")

    folders = [cached(gpu, version) for gpu, version in (("sm89", "1.7"), ("sm86", "1.7"), ("sm89", "1.8"))]
    assert built == list(zip(folders, [("sm89",), ("sm86",), ("sm89",)], strict=True))
    assert len(set(folders)) == 3 and cached("sm89", "1.7") == folders[0]


def test_the_command_line_builds_and_refuses(engine, tmp_path):
    out = tmp_path / "e"
    build = ("build", engine.path.parent / "checkpoint", "-o", out, "--max-seq-len", 16)
    result = call(*build, "--backend", "tensorrt", "--target", "sm80,sm90")
    assert result.exit_code == 2 and "does not build for sm90" in result.stderr
    result = call(*build, "--target", "sm80")
    assert result.exit_code == 2 and "only the backend tensorrt takes one" in result.stderr
    assert not out.exists()
    result = call(*build, "--backend", "tensorrt", "--target", "SM89, sm86")
    assert (result.exit_code, result.stdout) == (0, f"{out}\n") and "Building decoder" in result.stderr
    assert EngineDir.open(out).build.target == ("sm86", "sm89")
    result = call("generate", "a", "--model", out)
    assert result.exit_code == 2 and "this machine has no CUDA GPU" in result.stderr


def test_fp8_is_for_gpus_that_have_it(engine, tmp_path):
    build = ("build", engine.path.parent / "checkpoint", "-o", tmp_path / "e", "--max-seq-len", 16)
    result = call(*build, "--backend", "tensorrt", "--quantization", "fp8", "--target", "sm80,sm89")
    assert result.exit_code == 2 and "sm80 does not compute in fp8; build it with" in result.stderr
    result = call(*build, "--backend", "tensorrt", "--quantization", "fp8", "--target", "sm89")
    assert result.exit_code == 0, result.stderr
    assert EngineDir.open(tmp_path / "e").manifest.quantization == "fp8"


def in_turns(values: tuple[str, ...], whole: tuple[str, ...]) -> list:
    """Returns the parameters of each family with each value, of which a family that is not `whole` has one by itself,
    the next one's next."""
    return [
        pytest.param(name, value, marks=() if name in whole or number % len(values) == turn else EXHAUSTIVE)
        for number, name in enumerate(MODELS)
        for turn, value in enumerate(values)
    ]


# one of 4 bits and one of 8 have all there is; two families with each of the others
WHOLE = ("t5", "llava")
OTHERS = [(name, method) for name in WHOLE for method in METHODS if method not in ("int4-asymmetric", "fp8")]
QUANTIZED = [*in_turns(("int4-asymmetric", "fp8"), WHOLE), *OTHERS]


@pytest.mark.parametrize(("name", "method"), QUANTIZED)
def test_every_family_and_quantization(name, method, tmp_path):
    """The build compares every graph with the network of the same weights; the plan is smaller than the dense one."""
    make, graphs = MODELS[name]
    model = make()
    (model.write if name.startswith("vila") else model.save_pretrained)(tmp_path / "hf")
    checkpoint = convert_folder(tmp_path / "hf", tmp_path / "checkpoint")
    options = {"quantization": method, "group_size": 4 if method.startswith("int4") else None}
    build = BuildConfig("float16", backend="tensorrt", target=("sm89", "sm120"), **options)
    engine = build_engine(checkpoint, tmp_path / "engine", build)
    assert {file.split("/")[0] for file in engine.manifest.files if file.endswith(".plan")} == graphs


@pytest.mark.parametrize(("name", "dtype"), in_turns(("float32", "float16", "bfloat16"), ("t5",)))
def test_every_family_and_type(name, dtype, tmp_path):
    make, graphs = MODELS[name]
    model = make()
    (model.write if name.startswith("vila") else model.save_pretrained)(tmp_path / "hf")
    checkpoint = convert_folder(tmp_path / "hf", tmp_path / "checkpoint")
    build = BuildConfig(dtype, backend="tensorrt", target=("sm80", "sm120"))
    engine = build_engine(checkpoint, tmp_path / "engine", build)
    plans = {file for file in engine.manifest.files if file.endswith(".plan")}
    assert plans == {f"{graph}/rank0.plan" for graph in graphs}


def test_a_billion_parameters(tmp_path, monkeypatch):
    """From weights beside the graph, since no protocol buffer holds them."""
    monkeypatch.setattr("vlm.backends.onnxruntime.check.check", lambda *_, **__: None)  # which takes 10 GB more
    checkpoint = random_checkpoint(ONE_BILLION, tmp_path / "checkpoint", dtype="bfloat16")
    build = BuildConfig("bfloat16", 4, backend="tensorrt", target=("sm80",))
    engine = build_engine(checkpoint, tmp_path / "engine", build)
    assert engine.manifest.files["decoder/rank0.plan"]["size"] > 2_000_000_000
