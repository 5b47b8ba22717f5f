"""`vlm verify`: what rounding explains passes, what it does not fails, of every type."""

from __future__ import annotations

import json
import math

import pytest
import torch

from tests.kits.cli_kit import call
from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir, rebuilt
from vlm.build.builder import build_engine
from vlm.config import BuildConfig
from vlm.convert.folder import convert_folder
from vlm_app.reference.teacher_forcing import Distance, Place, distances
from vlm_app.reference.verification import Tolerances, Verdict, agreement

ONNX = {"backend": "onnxruntime", "quantization": "int8"}
BUILDS = [
    pytest.param({"dtype": dtype}, id=dtype) for dtype in ("float32", "float16", "bfloat16")
] + [pytest.param(ONNX, id="int8")]  # fmt: skip
MODELS = {
    "gpt2": lambda: tiny.gpt2(seed=1),
    "bart": lambda: tiny.bart(forced_eos_token_id=2),
    "nougat": lambda: tiny.nougat(spread=0.2),
}


def verified(engine, folder, *options):
    return call("verify", engine, "--against", folder, "--device", "cpu", "--threads", 1, *options)


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory):
    """Hugging Face's folder, one whose last matrix has noise of half its deviation, and a checkpoint of that."""
    folder, model = tmp_path_factory.mktemp("gpt2"), tiny.gpt2(seed=1)
    model.save_pretrained(folder / "whole")
    weight = model.transformer.h[1].mlp.c_proj.weight
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    weight.data += 0.5 * weight.std() * noise
    model.save_pretrained(folder / "disturbed")
    return folder / "whole", folder / "disturbed", convert_folder(folder / "disturbed", folder / "checkpoint")


@pytest.mark.parametrize("build", BUILDS)
def test_disturbed_weights_fail(build, disturbed, tmp_path):
    """The engine passes beside the model that it was made of, and fails beside the undisturbed one."""
    if "backend" in build:
        pytest.importorskip("onnxruntime", reason="needs the onnx extra")
    whole, own, checkpoint = disturbed
    engine = build_engine(checkpoint, tmp_path / "engine", BuildConfig(**build)).path
    passed = verified(engine, own, "--new-tokens", 12)
    assert passed.exit_code == 0 and "differs" not in passed.stderr and "beyond" not in passed.stdout
    failed = verified(engine, whole, "--new-tokens", 12)
    assert failed.exit_code == 1 and "beyond the tolerance: " in failed.stdout and "mean error" in failed.stdout
    assert len(failed.stderr.splitlines()) == 1 and "differs from Hugging Face" in failed.stderr
    assert "% of the tokens agree where" in failed.stderr and "Traceback" not in failed.stderr


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_input(name, dtype, tmp_path):
    engine = engine_dir(MODELS[name](), tmp_path, dtype=dtype)
    found = verified(engine.path, tmp_path / "hf", "--json", "--new-tokens", 12, "--reference-dtype", "float32")
    said = json.loads(found.stdout)
    assert found.exit_code == 0 and said["holds"] and said["reference_dtype"] == "float32"
    rows = said["requests"]
    assert len(rows) >= 3 and all(row["tokens"] == 12 and not row["beyond"] for row in rows)
    errors = [row["mean_error"] for row in rows]
    assert max(errors) < 1e-4 if dtype == "float32" else min(errors) > 1e-3


def test_another_model_fails_at_any_tolerance(tmp_path):
    """Its tokens agree by chance alone, so that no tolerance of errors helps."""
    engine = engine_dir(tiny.gpt2(seed=1), tmp_path)
    tiny.gpt2(seed=5).save_pretrained(tmp_path / "other")
    found = verified(engine.path, tmp_path / "other", "--tolerance", 100)
    assert found.exit_code == 1 and "of the tokens agree where 99% must" in found.stderr


def test_a_model_of_another_family(tmp_path):
    engine = engine_dir(tiny.gpt2(seed=1), tmp_path)
    found = verified(engine.path, "mini-nougat")
    assert found.exit_code == 2 and len(found.stderr.splitlines()) == 1
    assert "mini-nougat is a nougat model, the engine was made of a" in found.stderr


def test_a_configuration_that_hugging_face_refuses(tmp_path):
    engine = engine_dir(tiny.llama(seed=3, kind="qwen2"), tmp_path)
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    config["layer_types"] += config["layer_types"]
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config))
    found = verified(engine.path, tmp_path / "hf")
    assert found.exit_code == 2 and len(found.stderr.splitlines()) == 1
    assert "refuses the config.json of hf: `num_hidden_layers` (" in found.stderr and "mend it" in found.stderr


def test_a_larger_type_of_the_reference(tmp_path):
    engine = rebuilt(engine_dir(tiny.gpt2(seed=1), tmp_path), dtype="bfloat16")
    same = verified(engine.path, tmp_path / "hf", "--new-tokens", 8)
    assert "Hugging Face in bfloat16" in same.stdout
    exact = verified(engine.path, tmp_path / "hf", "--new-tokens", 8, "--reference-dtype", "float32")
    assert "Hugging Face in float32" in exact.stdout and exact.stdout != same.stdout


@pytest.mark.parametrize(("options", "says"), [
    (("--reference-dtype", "int8"), "--reference-dtype is 'int8'; allowed are float32, float16, bfloat16"),
    (("--new-tokens", 0), "--new-tokens is 0; it must be at least 1"),
    (("--tolerance", "nan"), "--tolerance is nan; it must be 0 or a positive number"),
    (("--new-tokens", 10**6), "1000000 new tokens leave no room"),
])  # fmt: skip
def test_options(options, says, tmp_path):
    engine = engine_dir(tiny.bart(), tmp_path)
    found = verified(engine.path, tmp_path / "hf", *options)
    assert found.exit_code == 2 and says in found.stderr and len(found.stderr.splitlines()) == 1


# --- the criterion ---
EXACT = torch.tensor([[0.0, 1.0, 2.0, 2.1]]).log_softmax(-1)


def test_a_divergence_is_a_near_tie_or_wrong():
    logprobs = dict(enumerate(EXACT[0].tolist()))
    near, far = (distances([Place(token, logprobs)], [3], EXACT, frozenset())[0] for token in (2, 0))
    deviation = float(EXACT.std())
    assert near.error == far.error == 0.0 and not near.same
    assert near.margin == pytest.approx(0.1 / deviation, rel=1e-4)
    assert far.margin == pytest.approx(2.1 / deviation, rel=1e-4)
    tolerances = Tolerances(mean_error=0.1, agreement=90.0)
    assert Verdict("a", (near,)).beyond(tolerances) == [] and Verdict("a", (near,)).near_ties(tolerances) == 1
    assert Verdict("a", (far, far)).beyond(tolerances) == ["2 wrong tokens"]


def test_errors_that_are_beyond():
    tolerances = Tolerances(mean_error=0.1, agreement=90.0)
    of = lambda *errors: Verdict("a", tuple(Distance(True, error, 0.0) for error in errors))  # noqa: E731
    assert of(0.1, 0.1).beyond(tolerances) == [] and agreement([of(1.0), of(2.0)]) == 100.0
    assert of(0.2, 0.2).beyond(tolerances) == ["mean error"]
    assert of(*[0.0] * 99, 1.1).beyond(tolerances) == ["largest error"]
    assert of(math.nan).beyond(tolerances) == ["mean error", "largest error"]


def test_masked_and_forced_tokens_do_not_count():
    exact = torch.tensor([[0.0, 1.0, -math.inf, -1e9]])
    place = Place(1, {1: 0.0, 0: 0.5})
    assert distances([place], [1], exact, {1})[0].error == pytest.approx(0.5 / float(exact[0, :2].std()))
    assert distances([place], [1], exact, frozenset())[0].error == pytest.approx(1.0 / float(exact[0, :2].std()))
