"""What is exported for compressed-tensors: read back it is the same, and transformers computes the same with it."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.kits.models import tiny
from tests.kits.quantized_folders import prompt_logits, quantized_checkpoint
from vlm.api.pipeline import Pipeline
from vlm.artifacts.hugging_face.hf_folder import HFFolder
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.build.builder import build_engine
from vlm.config import BuildConfig, RuntimeConfig
from vlm.convert.folder import convert_folder
from vlm.convert.quantized.export import export_compressed_tensors, packed32
from vlm.convert.quantized.exportable import check_exportable
from vlm.convert.quantized.layer import unpacked
from vlm.errors import CheckpointError, ConfigError
from vlm.layers.quant.methods import quantization_of
from vlm.quantize.calibration import Calibration, forced, recording
from vlm.quantize.config import QuantizeConfig
from vlm.quantize.model import quantize_checkpoint

MODELS = {
    "llama": lambda: tiny.llama(seed=3, num_key_value_heads=2),
    "opt": lambda: tiny.opt(seed=2),
    "t5": lambda: tiny.t5(seed=1, tied=False),
    "bart": lambda: tiny.bart(seed=5),
    "marian": lambda: tiny.marian(share_encoder_decoder_embeddings=False, decoder_vocab_size=40),
    "pegasus": lambda: tiny.pegasus(),
    "t5gemma": lambda: tiny.t5gemma(),
    "starcoder": lambda: tiny.gpt2(seed=1, multi_query=True),
    "llava": lambda: tiny.llava(seed=3),
}
CASES = [("llama", method) for method in ("int8", "int4", "int4-asymmetric", "w8a8", "fp8")]
CASES += [(name, "int4-asymmetric") for name in MODELS if name != "llama"]


def checkpoint_of(model, folder, method: str) -> Checkpoint:
    model.save_pretrained(folder / "hf")
    plain = convert_folder(folder / "hf", folder / "plain")
    return quantized_checkpoint(plain, folder / "small", method, **({"group_size": 16} if "int4" in method else {}))


@pytest.mark.parametrize(("name", "method"), CASES)
def test_an_export_read_back_is_the_same(name, method, tmp_path):
    checkpoint = checkpoint_of(MODELS[name](), tmp_path, method)
    again = convert_folder(
        export_compressed_tensors(checkpoint, tmp_path / "export", like=tmp_path / "hf"), tmp_path / "again"
    )
    assert again.quantization == method
    for role in checkpoint.roles:
        before, after = checkpoint.weights(role), again.weights(role)
        assert set(before) == set(after)
        assert all(before[n].dtype == after[n].dtype and torch.equal(before[n], after[n]) for n in before)


SCALED = {
    "awq": QuantizeConfig("awq", group_size=8, scales="folded"),
    "smoothquant": QuantizeConfig("smoothquant", alpha=0.5, static_activations=True, scales="folded"),
}


def calibrated(name: str, folder, config: QuantizeConfig) -> Checkpoint:
    """Returns what a model becomes that is calibrated on a few tokens."""
    MODELS[name]().save_pretrained(folder / "hf")
    plain = convert_folder(folder / "hf", folder / "plain")
    engine = build_engine(plain, folder / "dense", BuildConfig(max_batch_size=4))
    pipe = Pipeline(engine, recording(RuntimeConfig(device="cpu")))
    field = pipe.capabilities.id_field
    requests = [forced(pipe.request({field: list(ids)}), [5, 6, 7]) for ids in ((4, 9, 17, 30, 8), (21, 11, 6))]
    return quantize_checkpoint(plain, folder / "small", config, calibration=Calibration(pipe, requests))


@pytest.mark.parametrize("name", ["llama", "opt", "t5", "bart"])
@pytest.mark.parametrize("config", SCALED.values(), ids=SCALED)
def test_folded_scales_are_exported_and_read_back(name, config, tmp_path):
    checkpoint = calibrated(name, tmp_path, config)
    export = export_compressed_tensors(checkpoint, tmp_path / "export", like=tmp_path / "hf")
    again = convert_folder(export, tmp_path / "again")
    assert again.quantization == checkpoint.quantization
    plain, changed = Checkpoint.open(tmp_path / "plain"), set()
    for role in checkpoint.roles:
        before, after, dense = (each.weights(role) for each in (checkpoint, again, plain))
        assert set(before) == set(after) and all(torch.equal(before[n], after[n]) for n in before)
        changed |= {n for n in dense if "norm.weight" in n and not torch.equal(dense[n], after[n])}
    assert bool(changed) == (name != "bart")  # whose norms the residual stream reads


@pytest.mark.parametrize("method", ["int8", "int4", "w8a8", "fp8", "awq"])
def test_transformers_computes_the_same_with_an_export(method, tmp_path):
    pytest.importorskip("compressed_tensors")
    scaled = SCALED.get(method)
    checkpoint = (
        checkpoint_of(MODELS["llama"](), tmp_path, method) if scaled is None else calibrated("llama", tmp_path, scaled)
    )
    export_compressed_tensors(checkpoint, tmp_path / "export", like=tmp_path / "hf")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "export", dtype=torch.float32)
    ids = torch.tensor(tiny.prompts(model, [9]))
    with torch.no_grad():
        expected = {"input_ids": ids, "logits": model.eval()(ids).logits[0]}
    pipe = Pipeline(build_engine(checkpoint, tmp_path / "engine", BuildConfig()), RuntimeConfig(device="cpu"))
    ours, theirs = prompt_logits(pipe, expected)
    tolerance = 0.1 * float(theirs.abs().max()) if method == "w8a8" else 5e-4  # it divides by 127.5, we by 127
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=1e-4)


def test_what_compressed_tensors_cannot_say_is_refused(tmp_path):
    checkpoint = checkpoint_of(tiny.gpt2(seed=1), tmp_path, "int8")
    with pytest.raises(ConfigError, match=r"c_(attn|proj)\.weight \(and 7 more\) is no Linear.*leave --export out\.$"):
        export_compressed_tensors(checkpoint, tmp_path / "export", like=tmp_path / "hf")
    assert not (tmp_path / "export").exists()
    scaled = quantized_checkpoint(Checkpoint.open(tmp_path / "plain"), tmp_path / "other", "int8")
    scaled.manifest["quantization_options"] = {"pre_quant_scale": True}
    with pytest.raises(ConfigError, match="has no place for pre_quant_scale"):
        export_compressed_tensors(scaled, tmp_path / "export", like=tmp_path / "hf")
    with pytest.raises(ConfigError, match="is not quantized; run vlm quantize first"):
        export_compressed_tensors(Checkpoint.open(tmp_path / "plain"), tmp_path / "export", like=tmp_path / "hf")


@pytest.mark.parametrize("make", [tiny.qwen_vl, tiny.pix2struct])
def test_layers_that_hugging_face_keeps_otherwise_are_named_as_those_to_ignore(make, tmp_path):
    name = "visual.patch_embed"
    make().save_pretrained(tmp_path / "hf")
    quantization = quantization_of("int8", {"ignore": ["head"]})
    with pytest.raises(ConfigError, match=rf"leave --export out, or leave such layers .* --ignore 'head,{name}'"):
        check_exportable(HFFolder(tmp_path / "hf"), quantization)
    check_exportable(HFFolder(tmp_path / "hf"), quantization_of("int8", {"ignore": ["head", name]}))


def test_a_folder_that_is_quantized_is_no_original(tmp_path):
    checkpoint = checkpoint_of(tiny.llama(seed=3), tmp_path, "int8")
    export = export_compressed_tensors(checkpoint, tmp_path / "export", like=tmp_path / "hf")
    with pytest.raises(CheckpointError, match="is quantized already; give the unquantized folder"):
        export_compressed_tensors(checkpoint, tmp_path / "second", like=export)


@pytest.mark.parametrize("bits", [4, 8])
def test_words_hold_levels_lowest_first(bits):
    levels = torch.randint(0, 2**bits, (3, 21), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(unpacked(packed32(levels, bits), bits)[:, :21], levels)


def test_layers_whose_columns_move_are_not_exported(tmp_path):
    side, channels = 4, 3
    hidden = side * side * channels  # so that a column of the patches' projection is a whole patch
    tower = {"hidden_size": hidden, "patch_embed_hidden_size": hidden}
    tiny.pix2struct(seed=1, tower=tower, text={"hidden_size": hidden, "d_kv": 12}).save_pretrained(tmp_path / "hf")
    with pytest.raises(ConfigError, match=r"patch_projection\.weight is no Linear .*'head,visual\.patch_embed'"):
        check_exportable(HFFolder(tmp_path / "hf"), quantization_of("int8", {"ignore": ["head"]}))
