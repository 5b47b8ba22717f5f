"""Which library builds for which GPU, and which machine may run what was built."""

from __future__ import annotations

import shlex
import sys
from types import ModuleType, SimpleNamespace

import pytest

from vlm.backends.installed import checked_backend
from vlm.backends.tensorrt import library as trt_library
from vlm.backends.tensorrt.library import FULL, RTX, Library, installed, named, versions
from vlm.backends.tensorrt.plan_info import Machine, PlanInfo, check_runnable
from vlm.backends.tensorrt.targets import check_types, library_for, resolve_targets
from vlm.config import BuildConfig
from vlm.errors import ConfigError, EngineError

KNOWN = ("CURRENT", "NONE", "SM75", "SM80", "SM86", "SM89", "SM120")
FULL_LIBRARY = Library(FULL, SimpleNamespace(__version__="11.4.0"))
RTX_LIBRARY = Library(
    RTX, SimpleNamespace(__version__="1.7.1", ComputeCapability=SimpleNamespace(**dict.fromkeys(KNOWN)))
)
BOTH = {FULL: FULL_LIBRARY, RTX: RTX_LIBRARY}


@pytest.mark.parametrize(
    ("asked", "gpu", "name"),
    [((), "sm90", FULL), (("sm90",), "sm90", FULL), (("sm80",), "sm90", RTX), ((), None, RTX), (("sm89",), None, RTX)],
)
def test_the_full_library_unless_only_the_other_can(asked, gpu, name):
    assert library_for(asked, gpu, BOTH).name == name
    for library in BOTH.values():
        assert library_for(asked, gpu, {library.name: library}) is library


def test_no_library_at_all():
    with pytest.raises(
        EngineError, match=r"pip install 'vlm-runtime\[tensorrt-rtx\]'.*pip install 'vlm-runtime\[tensorrt\]'"
    ):
        library_for((), None, {})
    with pytest.raises(EngineError, match=r"^tensorrt is not installed; pip install 'vlm-runtime\[tensorrt\]'\.$"):
        named(FULL, {RTX: RTX_LIBRARY})
    assert named(RTX, BOTH) is RTX_LIBRARY


@pytest.mark.parametrize(
    ("library", "asked", "gpu", "targets"),
    [
        (RTX_LIBRARY, ("sm120", "sm80"), None, ("sm80", "sm120")),
        (RTX_LIBRARY, (), None, ("sm80", "sm86", "sm89", "sm120")),
        (RTX_LIBRARY, (), "sm89", ("sm89",)),
        (RTX_LIBRARY, ("sm75",), "sm89", ("sm75",)),
        (FULL_LIBRARY, (), "sm90", ("sm90",)),
        (FULL_LIBRARY, ("sm90",), "sm90", ("sm90",)),
    ],
)
def test_targets(library, asked, gpu, targets):
    assert resolve_targets(library, asked, gpu) == targets


@pytest.mark.parametrize(
    ("library", "asked", "gpu", "reason"),
    [
        (RTX_LIBRARY, ("sm80", "sm90"), None, r"tensorrt_rtx 1.7.1 does not build for sm90, it builds for sm75, sm80"),
        (RTX_LIBRARY, (), "sm90", r"does not build for sm90.*pip install 'vlm-runtime\[tensorrt\]'"),
        (
            FULL_LIBRARY,
            (),
            None,
            r"a machine with an NVIDIA GPU, there is none here.*pip install 'vlm-runtime\[tensorrt-rtx\]'",
        ),
        (FULL_LIBRARY, ("sm80",), "sm90", r"the GPU that it runs on \(sm90\), not for sm80"),
    ],
)
def test_targets_that_a_library_cannot_build_for(library, asked, gpu, reason):
    with pytest.raises(EngineError, match=reason):
        resolve_targets(library, asked, gpu)


def test_bfloat16_needs_ampere():
    check_types(("sm75", "sm80"), BuildConfig("float16"))
    check_types(("sm80", "sm120"), BuildConfig("bfloat16"))
    with pytest.raises(EngineError, match=r"^sm75 does not compute in bfloat16; build it with float16"):
        check_types(("sm75", "sm80"), BuildConfig("bfloat16"))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"backend": "tensorrt", "target": ("sm80", "ada", "90")}, "target is ada, 90, it must be like sm89"),
        ({"target": ("sm80",)}, "target is sm80, only the backend tensorrt takes one"),
        ({"backend": "tensorrt_rtx"}, "allowed are torch.*tensorrt"),
    ],
)
def test_odd_builds(options, reason):
    with pytest.raises(ConfigError, match=reason):
        checked_backend(BuildConfig(**options))


def test_what_can_be_imported(monkeypatch):
    monkeypatch.setattr(trt_library, "MODULES", {FULL: ("no_such_trt",), RTX: ("neither_this", "a_fake_trt")})
    fake = ModuleType("a_fake_trt")
    fake.__version__ = "9.9"
    monkeypatch.setitem(sys.modules, "a_fake_trt", fake)
    with pytest.raises(
        EngineError, match=r"tensorrt_rtx 9.9 is too old.*pip install --upgrade 'vlm-runtime\[tensorrt-rtx\]'"
    ):
        installed()
    fake.IKVCacheUpdateLayer = fake.CausalMaskKind = object
    assert versions() == {RTX: "9.9"}


@pytest.mark.parametrize(
    "line", ["import not_there_at_all", "raise ImportError('libcudart.so.13')", "raise OSError(5)"]
)
def test_a_library_that_does_not_load(monkeypatch, tmp_path, line):
    (tmp_path / "a_broken_trt.py").write_text(line)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(trt_library, "MODULES", {FULL: ("a_broken_trt",)})
    with pytest.raises(
        EngineError, match=r"tensorrt is installed but does not load.*pip install 'vlm-runtime\[tensorrt\]'"
    ):
        installed()


# --- which machine may run a plan ---

KNOWN_HERE = RTX_LIBRARY.capabilities
BUILD = BuildConfig("float16", 16, 512, None, "tensorrt", ("sm80", "sm86"))


def info(library: str = RTX, version: str = "1.7.1", targets: tuple[str, ...] = ("sm80", "sm86")) -> PlanInfo:
    return PlanInfo(library, version, targets, {"decoder": "decoder/rank0.plan"}, {"max_batch_size": 16})


def refusal(plan: PlanInfo, machine: Machine) -> str:
    with pytest.raises(EngineError) as caught:
        check_runnable(plan, BUILD, machine, "my engines/a", "a folder")
    return str(caught.value)


def test_a_machine_that_fits():
    check_runnable(info(), BUILD, Machine("sm86", {RTX: "1.7.1"}), "e", "a folder")
    check_runnable(info(FULL, "11.4.0", ("sm90",)), BUILD, Machine("sm90", {FULL: "11.4.0"}), "e", "a folder")


def test_the_rebuild_command_is_exact():
    said = refusal(info(), Machine("sm89", {RTX: "1.7.1"}, KNOWN_HERE))
    assert "its plans are for sm80, sm86, this GPU is sm89" in said
    command, _, source = said[said.index("vlm build") :].partition(" (")
    assert source == "MODEL was a folder)."
    assert shlex.split(command) == [
        *("vlm", "build", "MODEL", "-o", "my engines/a", "--dtype", "float16", "--max-batch-size", "16"),
        *("--max-seq-len", "512", "--backend", "tensorrt", "--target", "sm89"),
    ]


def test_no_gpu():
    said = refusal(info(), Machine(None, {RTX: "1.7.1"}))
    assert "TensorRT plans for sm80, sm86, this machine has no CUDA GPU" in said
    assert "--backend torch (MODEL" in said and "--target" not in said


def test_rtx_does_not_run_on_hopper():
    said = refusal(info(targets=("sm90",)), Machine("sm90", {RTX: "1.7.1"}))
    assert "tensorrt_rtx does not run on sm90 (H100, H200)" in said
    assert "rebuild it: pip install 'vlm-runtime[tensorrt]' and then vlm build" in said and "--target sm90" in said


def test_other_libraries():
    assert "built by tensorrt_rtx 1.7.1, installed is 1.8" in refusal(info(), Machine("sm86", {RTX: "1.8"}))
    other = refusal(info(), Machine("sm86", {FULL: "11.4.0"}))
    assert "built by tensorrt_rtx 1.7.1, which is not installed" in other and "pip install" not in other
    none = refusal(info(targets=("sm89",)), Machine("sm86", {}))
    assert (
        "for sm89, this GPU is sm86; it was built by" in none and "pip install 'vlm-runtime[tensorrt]' and then" in none
    )


def test_the_manifest_keeps_it():
    assert PlanInfo.from_manifest(info().built_for()) == info()
    assert info().built_for()["devices"] == ["cuda"]
    with pytest.raises(EngineError, match="does not say which TensorRT built it"):
        PlanInfo.from_manifest({"devices": ["cpu", "cuda"]})
