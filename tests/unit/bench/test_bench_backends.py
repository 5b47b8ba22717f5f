"""`vlm bench --backend torch,onnxruntime`: several in one run, turn by turn; what its tables say of each."""

from __future__ import annotations

import csv
import json

import pytest

pytest.importorskip("onnxruntime", reason="needs the onnx extra")

from tests.kits.cli_kit import call
from tests.kits.models import tiny
from vlm.config import BuildConfig
from vlm_app.bench import table
from vlm_app.bench.systems import session
from vlm_app.bench.timing.clock import in_turns
from vlm_app.core.backend_names import MeasuredName, is_measured

ALL = ["torch", "onnxruntime", "onnxruntime-int8"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """(result, what was printed) of all backends beside Hugging Face"""
    folder = tmp_path_factory.mktemp("bench")
    (folder / "t5.json").write_text(json.dumps(tiny.t5(num_layers=1).config.to_dict()))
    options = ["--backend", ",".join(ALL), "--threads", "1", "--device", "cpu", "--input-output-len", "6,4", "--csv"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "bandwidth", lambda device: 1e10)
        found = call("bench", "text", "--arch", folder / "t5.json", "--random-weights", *options,
                     "--repeats", "2", "--hf-repeats", "2", "--json", folder / "out.json")  # fmt: skip
    assert found.exit_code == 0, found.stderr
    return json.loads((folder / "out.json").read_text()), found.stdout


@pytest.mark.slow
def test_every_backend_is_measured(measured):
    result, _ = measured
    (row,) = result["rows"]
    assert result["config"]["backends"] == ALL and result["config"]["threads"] == 1
    assert [*row["beside"]] == ALL[1:]
    for part in (row["vlm"], row["hf"], *row["beside"].values()):
        assert len(part["runs"]["whole"]) == 2 and part["tokens_per_s"] > 0
    assert "CPU, 1 thread" in result["environment"]["device"] and result["environment"]["load"] >= 0


@pytest.mark.slow
def test_a_line_for_every_backend(measured):
    result, printed = measured
    rows = table.rows(result)
    assert [row.measure.rpartition(" on ")[2] for row in rows] == ALL
    assert len({row.hf for row in rows}) == 1 and len({row.vlm for row in rows}) == 3
    # what compiled engines keep of quantized weights is theirs
    assert [row.floor == "–" for row in rows] == [False, False, True]
    assert "onnxruntime 1" in table.markdown([result]).splitlines()[-1]
    header, *lines = csv.reader(printed.splitlines())
    assert header[-1] == "backend" and [line[-1] for line in lines] == ALL
    floors = [line[header.index("of_floor")] for line in lines]
    assert all(floors[:2]) and not floors[2]


@pytest.mark.slow
def test_one_backend_needs_no_label(measured):
    result, _ = measured
    old = {**result, "config": {k: v for k, v in result["config"].items() if k not in ("backends", "threads")}}
    old["rows"] = [{k: v for k, v in row.items() if k != "beside"} for row in result["rows"]]
    assert [row.measure for row in table.rows(old)] == ["6 in, 4 out, batch 1, greedy: tokens/s"]


def test_systems_take_turns():
    log = []

    def turns(name, count):
        for number in range(count):
            log.append(f"{name}{number}")
            yield
        return name.upper()

    assert in_turns({"a": turns("a", 3), "b": turns("b", 1)}) == {"a": "A", "b": "B"}
    assert log == ["a0", "b0", "a1", "a2"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ["--backend", "torch,onyx"],
            "--backend holds onyx; allowed are torch, onnxruntime, tensorrt, torch-int8",
        ),
        (["--threads", "0"], "--threads is 0; it must be at least 1"),
        (["--backend", "onnxruntime", "--dtype", "bfloat16"], "onnxruntime does not compute in bfloat16 on the CPU"),
        (["--backend", "tensorrt", "--device", "cpu"], "tensorrt does not run on the device, which is cpu"),
    ],
)
def test_mistakes_are_one_sentence(options, says):
    found = call("bench", "text", "--model", "mini-t5", *options)
    assert found.exit_code == 2 and says in found.stderr and len(found.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "name, engine, visual, kept",
    [
        ("torch", "torch", False, None),
        ("torch-fp8+kv-fp8", "torch-fp8", False, "fp8"),
        ("torch-fp8+visual", "torch-fp8", True, None),
        ("torch-int8+visual+kv-int8+lora-2x8", "torch-int8", True, "int8"),
    ],
)
def test_a_name_says_what_is_quantized(name, engine, visual, kept):
    parts = MeasuredName.read(name)
    assert is_measured(name)
    assert (parts.engine, parts.quantizes_visual, parts.kv_cache_dtype) == (engine, visual, kept)
    # the head stays as it is in either case
    assert BuildConfig(**parts.build).ignore == (("head",) if visual else None)


@pytest.mark.parametrize("name", ["torch+visual", "torch-fp8+kv-fp8+visual", "torch-fp8+audio"])
def test_other_names_are_refused(name):
    assert not is_measured(name)


@pytest.mark.parametrize("ignore, is_named", [((), False), (("--ignore", "head"), True)])
def test_an_engine_has_the_name_of_what_is_quantized_in_it(tmp_path, ignore, is_named):
    arch = tmp_path / "llava.json"
    arch.write_text(json.dumps(tiny.llava(text={"num_hidden_layers": 1}).config.to_dict()))
    engine = tmp_path / "engine"
    built = call("build", "--random-weights", "--arch", arch, "-o", engine, "--quantization", "fp8", *ignore)
    assert built.exit_code == 0, built.stderr
    options = ["--device", "cpu", "--input-output-len", "4,2", "--repeats", "1", "--no-hf"]
    found = call("bench", "prompt", "--model", engine, "--backend", "torch-fp8+visual", *options)
    assert (found.exit_code == 0) == is_named
    refusal = "is an engine of torch-fp8; for torch-fp8+visual give what it was built from."
    assert (refusal in " ".join(found.stderr.split())) != is_named
