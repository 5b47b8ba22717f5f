"""Plans are really built here, by TensorRT-RTX for GPUs that this machine need not have."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx", reason="needs pip install 'vlm-runtime[onnx]'")
pytest.importorskip("tensorrt_rtx_bindings", reason="needs pip install 'vlm-runtime[tensorrt-rtx]'")

from tests.unit.backends import trt_kit
from vlm.backends.tensorrt.builder import PlanBuilder, build_plans
from vlm.backends.tensorrt.library import FULL, RTX, Library, installed
from vlm.backends.tensorrt.plan_info import PlanInfo
from vlm.backends.tensorrt.profiles import PlanLimits
from vlm.config import BuildConfig, EngineLimits
from vlm.errors import EngineError


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr("vlm.backends.tensorrt.builder.this_gpu", lambda: None)
    monkeypatch.setenv("VLM_CACHE", str(tmp_path / "cache"))


LIMITS = EngineLimits(4, trt_kit.MAX_SEQ_LEN, 4)


def build_config(dtype: str = "float32", target: tuple[str, ...] = ("sm80",)) -> BuildConfig:
    return BuildConfig(dtype, backend="tensorrt", target=target)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_plans_of_every_graph_and_type(tmp_path, dtype):
    files = {name: getattr(trt_kit, name)(tmp_path / f"{name}.onnx", dtype) for name in ("visual", "cross", "decoder")}
    steps = []
    info = build_plans(files, tmp_path, build_config(dtype), LIMITS, progress=lambda *step: steps.append(step))
    assert info.library == "tensorrt_rtx" and info.targets == ("sm80",)
    assert info.limits["max_seq_len"] == trt_kit.MAX_SEQ_LEN
    for name in files:
        assert (tmp_path / info.plans[name]).stat().st_size > 10_000
        shown = [done for description, done, _ in steps if description == f"Building {name}"]
        assert shown == sorted(shown) and 0 < shown[-1] <= 1000
    assert PlanInfo.from_manifest(info.built_for()) == info


def test_one_plan_for_several_gpus(tmp_path):
    file = trt_kit.decoder(tmp_path / "decoder.onnx", "float16")
    info = build_plans({"decoder": file}, tmp_path, build_config("float16", ("sm120", "sm80", "sm86", "sm89")), LIMITS)
    assert info.targets == ("sm80", "sm86", "sm89", "sm120")


def test_an_interrupt_ends_a_build(tmp_path):
    calls = []

    def progress(*step):
        calls.append(step)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_plans(
            {"decoder": trt_kit.decoder(tmp_path / "d.onnx")}, tmp_path, build_config(), LIMITS, progress=progress
        )
    assert len(calls) == 1 and not list(tmp_path.rglob("*.plan"))


def test_what_cannot_be_parsed_and_what_cannot_be_built(tmp_path, monkeypatch):
    (tmp_path / "broken.onnx").write_bytes(b"no graph")
    with pytest.raises(EngineError, match=r"^TensorRT cannot read broken.onnx: .+"):
        build_plans({"decoder": tmp_path / "broken.onnx"}, tmp_path, build_config(), LIMITS)
    file = trt_kit.decoder(tmp_path / "decoder.onnx", causal="sideways")
    with pytest.raises(EngineError, match=r"^TensorRT cannot read decoder.onnx: .*causal_kind: sideways"):
        build_plans({"decoder": file}, tmp_path, build_config(), LIMITS)
    monkeypatch.setattr("vlm.backends.tensorrt.builder.graph_profiles", lambda inputs, limits: ())
    with pytest.raises(EngineError, match=r"^tensorrt_rtx cannot build visual.onnx: .*profile"):
        build_plans({"visual": trt_kit.visual(tmp_path / "visual.onnx")}, tmp_path, build_config(), LIMITS)


@pytest.mark.filterwarnings("ignore:.*[Tt]iming cache")
def test_the_way_of_the_full_library(tmp_path):
    """RTX in its place, which has the same interface: it takes timings and gives them back, empty."""
    full = Library(FULL, installed()[RTX].module)
    builder = PlanBuilder(full, ("sm90",), tmp_path / "timings")
    for plan in ("first.plan", "second.plan"):
        builder.build(trt_kit.decoder(tmp_path / "d.onnx"), tmp_path / plan, PlanLimits.from_engine(LIMITS))
        assert (tmp_path / plan).stat().st_size > 10_000
    assert [file.name for file in (tmp_path / "timings").iterdir()] == [f"tensorrt-{full.version}-sm90.timing"]


def test_without_a_target_all_from_ampere_on(tmp_path):
    info = build_plans({"visual": trt_kit.visual(tmp_path / "v.onnx")}, tmp_path, build_config(target=()), LIMITS)
    assert set(info.targets) >= {"sm80", "sm86", "sm89", "sm120"} and "sm75" not in info.targets


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"attention": "standard"},
            "attention_0 lost the lengths of its keys.*causal by upper_left, not by lower_right",
        ),
        ({"lengths": False}, "attention_0 reads a cache without lengths"),
        ({"causal": "upper_left"}, "attention_0 is causal by upper_left, a cache needs lower_right"),
        ({"causal": None}, "attention_0 sees later tokens"),
    ],
)
def test_a_misread_attention_is_refused(tmp_path, options, reason):
    file = trt_kit.decoder(tmp_path / "decoder.onnx", **options)
    with pytest.raises(EngineError, match=reason):
        build_plans({"decoder": file}, tmp_path, build_config(), LIMITS)
    assert not list(tmp_path.rglob("*.plan"))
