"""Folders that are quantized already, made by the programs that people use (tests/kits/quantizers.py): the logits are
what the program's own weights give in float32, and bad folders are one sentence each."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from tests.kits.models import tiny
from tests.kits.quantized_folders import FOLDERS, built, expected_of, packed_llama, prompt_logits
from vlm.artifacts.hugging_face.hf_folder import HFFolder
from vlm.convert.folder import convert_folder
from vlm.convert.quantized.bitsandbytes import NESTED, STATES
from vlm.convert.quantized.export import layer_tensors
from vlm.convert.quantized.roles import dense_weight
from vlm.convert.quantized.source import read_quantized
from vlm.errors import VlmError, VlmWarning
from vlm.layers.quant.int4 import Int4

pytestmark = pytest.mark.filterwarnings("ignore:.*is quantized")
GPTQ = "gptq-desc-act"
Q = "model.layers.0.self_attn.q_proj"
EXACT = {
    "awq": ("int4-asymmetric", {"group_size": 16, "folded_scales": "AWQ"}),
    "bnb-gpt2": ("int8", {}),
    "bnb-int8": ("int8", {}),
    "gptq-asymmetric": ("int4-asymmetric", {"group_size": 32}),
    "gptq-desc-act": ("int4", {"group_size": 32, "input_order": True}),
    "modelopt-fp8": ("fp8", {"input_scale": True}),
    "modelopt-int4-awq": ("int4", {"group_size": 32, "pre_quant_scale": ["attention.out", "ffn.down"],
                                   "folded_scales": "ModelOpt's W4A16_AWQ"}),
    "modelopt-int8-sq": ("w8a8", {"input_scale": True, "pre_quant_scale": True,
                                  "folded_scales": "ModelOpt's W8A8_SQ_PER_CHANNEL"}),
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_a_folder_computes_what_its_program_says(name, tmp_path):
    checkpoint, pipe = built(FOLDERS / name, tmp_path)
    method, options = EXACT[name]
    having = options.get("pre_quant_scale")
    if isinstance(having, list):
        options = options | {"pre_quant_scale": [f"decoder.blocks.0.{path}" for path in having]}
    assert checkpoint.quantization == method
    assert checkpoint.quantization_options == {"ignore": [], **options}
    torch.testing.assert_close(*prompt_logits(pipe, expected_of(FOLDERS / name)), atol=5e-4, rtol=1e-4)


def test_weights_that_no_method_keeps_are_rounded_again(tmp_path):
    folder = FOLDERS / "bnb-nf4-double"
    with pytest.warns(UserWarning, match=r"bitsandbytes nf4.*rounded again, to int8"):
        source = read_quantized(HFFolder(folder))
    model, expected = LlamaForCausalLM(LlamaConfig.from_pretrained(folder)), expected_of(folder)
    assert source is not None
    dense = {name: layer.parameters["weight"]() for name, layer in source.layers.items()}
    state = {name: tensor for name, tensor in source.tensors.items() if not tensor.is_meta}
    model.load_state_dict(dense | state, strict=False)
    with torch.no_grad():
        logits = model.eval().float()(expected["input_ids"]).logits[0]
    torch.testing.assert_close(logits, expected["logits"], atol=5e-4, rtol=1e-4)
    checkpoint, pipe = built(folder, tmp_path)
    ours, theirs = prompt_logits(pipe, expected)
    assert checkpoint.quantization == "int8" and 0 < (ours - theirs).abs().max() < 0.1 * theirs.abs().max()


@pytest.mark.parametrize("difference", ["a part as it is", "an order of its own"])
def test_a_fused_layer_stays_quantized_where_all_of_it_is_alike(difference, tmp_path):
    folder = tmp_path / "hf"
    shutil.copytree(FOLDERS / GPTQ, folder)
    state = load_file(folder / "model.safetensors")
    if difference == "a part as it is":
        [out] = {state[f"{Q}.scales"].shape[1]}
        for name in ("qweight", "qzeros", "scales", "g_idx"):
            del state[f"{Q}.{name}"]
        state[f"{Q}.weight"] = torch.randn(out, 64, generator=torch.Generator().manual_seed(0))
    else:
        state[f"{Q}.g_idx"] = state[f"{Q}.g_idx"].flip(0).contiguous()
    save_file(state, folder / "model.safetensors")
    with pytest.warns(UserWarning, match=r"decoder\.blocks\.0\.attention\.qkv\.weight are not quantized"):
        checkpoint, pipe = built(folder, tmp_path)
    assert checkpoint.quantization_options["ignore"] == ["decoder.blocks.0.attention.qkv"]
    source, model = read_quantized(HFFolder(folder)), LlamaForCausalLM(LlamaConfig.from_pretrained(folder))
    assert source is not None
    dense = {name: dense_weight(layer, source.scheme) for name, layer in source.layers.items()}
    others = {name: tensor for name, tensor in source.tensors.items() if not tensor.is_meta}
    model.load_state_dict(dense | others, strict=False)
    ids = expected_of(FOLDERS / GPTQ)["input_ids"]
    with torch.no_grad():
        expected = {"input_ids": ids, "logits": model.eval()(ids).logits[0]}
    torch.testing.assert_close(*prompt_logits(pipe, expected), atol=5e-4, rtol=1e-4)


# --- compressed-tensors: packed by the library in the test

SCHEMES = {
    "fp8": ({"num_bits": 8, "type": "float", "strategy": "channel"}, {"dynamic": True, "strategy": "token"}, "fp8"),
    "fp8-static": ({"num_bits": 8, "type": "float", "strategy": "tensor"}, {"strategy": "tensor"}, "fp8"),
    "int8": ({"num_bits": 8, "type": "int", "strategy": "channel"}, {"dynamic": True, "strategy": "token"}, "w8a8"),
    "int8-static": ({"num_bits": 8, "type": "int", "strategy": "channel"}, {"strategy": "tensor"}, "w8a8"),
    "w4a16": ({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 16}, None, "int4"),
    "w4a16-asymmetric": (
        {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 16, "symmetric": False}, None,
        "int4-asymmetric"),
    "w4a16-channel": ({"num_bits": 4, "type": "int", "strategy": "channel"}, None, "int4"),
    "w8a16": ({"num_bits": 8, "type": "int", "strategy": "channel"}, None, "int8"),
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEMES)
def test_compressed_tensors(name, tmp_path):
    pytest.importorskip("compressed_tensors")
    weights, inputs, method = SCHEMES[name]
    model = packed_llama(tiny.llama(seed=3, num_key_value_heads=2), tmp_path / "hf", weights, inputs)
    checkpoint, pipe = built(tmp_path / "hf", tmp_path)
    assert checkpoint.quantization == method
    assert checkpoint.quantization_options.get("input_scale", False) == name.endswith("static")
    ids = tiny.prompts(model, [9])[0]
    with torch.no_grad():
        expected = {"input_ids": torch.tensor([ids]), "logits": model(torch.tensor([ids])).logits[0]}
    ours, theirs = prompt_logits(pipe, expected)
    if inputs is None:
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-4)
    else:  # inputs are rounded here, the library's weights meet them as they are
        assert 0 < (ours - theirs).abs().max() < 0.25 * theirs.abs().max()


MOVED = {
    "pix2struct": (lambda: tiny.pix2struct(seed=1), "patch_projection.weight", "visual", "patch_embed"),
    "lighton-ocr": (lambda: tiny.lighton_ocr(seed=1), "merging_layer.weight", "visual", "merge"),
}


@pytest.mark.parametrize("name", MOVED)
def test_a_layer_whose_columns_move_is_read_as_the_dense_one(name, tmp_path):
    make, ending, role, path = MOVED[name]
    make().save_pretrained(tmp_path / "dense")
    state = load_file(tmp_path / "dense" / "model.safetensors")
    endings = (ending, "wi_0.weight", "wi_1.weight", "gate_proj.weight", "up_proj.weight")
    layers = [name for name in state if name.endswith(endings)]
    method, packed = Int4(group_size=4), dict(state)
    for layer in layers:
        parameters = method.quantize(packed.pop(layer))
        state[layer] = method.dequantize(parameters)
        base = layer.removesuffix(".weight")
        packed |= {f"{base}.{key}": read() for key, read in layer_tensors(parameters, packs=True).items()}
    shutil.copytree(tmp_path / "dense", tmp_path / "packed")
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 4}
    settings: dict = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    settings["config_groups"] = {"g": {"weights": weights}}
    config = json.loads((tmp_path / "dense" / "config.json").read_text()) | {"quantization_config": settings}
    (tmp_path / "packed" / "config.json").write_text(json.dumps(config))
    for folder, tensors in (("dense", state), ("packed", packed)):
        save_file({n: t.contiguous() for n, t in tensors.items()}, tmp_path / folder / "model.safetensors")
    expected = convert_folder(tmp_path / "dense", tmp_path / "c").weights(role)[f"{path}.weight"]
    with pytest.warns(VlmWarning, match=rf"{role}\.{path}\.weight are not quantized"):
        checkpoint = convert_folder(tmp_path / "packed", tmp_path / "d")
    assert checkpoint.quantization == "int4" and f"{role}.{path}" in checkpoint.quantization_options["ignore"]
    torch.testing.assert_close(checkpoint.weights(role)[f"{path}.weight"], expected)


# --- what is refused


def altered(tmp_path: Path, name: str, settings=None, **tensors) -> Path:
    """Copies a folder with other settings of its quantization, and tensors changed by functions; None drops one."""
    folder = tmp_path / "hf"
    shutil.copytree(FOLDERS / name, folder)
    config, state = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    if settings is not None:
        config["quantization_config"] = settings(config["quantization_config"])
    for key, change in tensors.items():
        full = f"{Q}.{key}"
        state[full] = change(state[full]).contiguous() if change else state.pop(full)
        state = {n: v for n, v in state.items() if change or n != full}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(state, folder / "model.safetensors")
    return folder


BAD = {
    "scales of another shape": ((GPTQ, None, {"scales": lambda t: t[:, :32]}),
                                r"q_proj\.scales has shape \[2, 32\], its weight needs \[2, 64\]"),
    "no scales": ((GPTQ, None, {"scales": None}), r"a quantized layer lacks .*q_proj\.scales"),
    "groups that do not divide": ((GPTQ, lambda s: s | {"group_size": 24}, {}),
                                  r"64 inputs, which groups of 24 weights do not divide"),
    "groups of several sizes": ((GPTQ, None, {"g_idx": lambda t: t * 0}), r"groups of several sizes"),
    "zero points of symmetric weights": (("gptq-asymmetric", lambda s: s | {"sym": True}, {}), "says sym"),
    "3 bits": ((GPTQ, lambda s: s | {"bits": 3}, {}), r"GPTQ with 3 bits in the format gptq; read are 4 and 8"),
    "marlin": ((GPTQ, lambda s: s | {"checkpoint_format": "marlin"}, {}), r"in the format marlin; read are"),
    "dynamic": ((GPTQ, lambda s: s | {"dynamic": {"+:.*q": {"bits": 8}}}, {}), r"other settings for some layers"),
    "gemv": (("awq", lambda s: s | {"version": "gemv"}, {}), r"in the packing gemv; read are 4 bits in"),
    "gemv by its other word": (("awq", lambda s: s | {"version": None, "format": "gemv"}, {}), r"in the packing gemv;"),
    "gemv by GPTQModel's word": (("awq", lambda s: s | {"version": None, "checkpoint_format": "gemv"}, {}),
                                 r"in the packing gemv;"),
    "words of 16 bits": ((GPTQ, lambda s: s | {"pack_dtype": "int16"}, {}), r"packed in int16 \(pack_dtype\); read"),
    "another method by GPTQModel's word": ((GPTQ, lambda s: s | {"quant_method": None, "method": "qqq"}, {}),
                                           r"is quantized \(qqq, 4 bits\), which is not read"),
    "llm-awq": (("awq", lambda s: s | {"backend": "llm-awq"}, {}), r"in the packing llm-awq; read are"),
    "scales that are no numbers": (("awq", None, {"scales": lambda t: t * math.nan}), r"weight_scale .*not finite"),
    "levels that are no numbers": (("bnb-nf4-double", None, {"weight.quant_map": lambda t: t * math.nan}),
                                   r"qkv\.weight has values that are not finite"),
    "a state that is no JSON": (("bnb-nf4-double", None, {STATES[0]: lambda t: t[:-3]}), "invalid weight.quant_state"),
    "nested blocks of another size": (("bnb-nf4-double", None, {NESTED[0]: lambda t: t[:0]}), r"absmax has shape \[0"),
    "floats for int8": (("bnb-int8", None, {"weight": lambda t: t.float()}), r"q_proj\.weight is torch\.float32"),
    "no absmax": (("bnb-nf4-double", None, {"weight.absmax": None}), r"lacks .*q_proj\.weight\.absmax"),
    "blocks of another size": (("bnb-nf4-double", None, {"weight.absmax": lambda t: t[:3]}), r"absmax has shape \[3\]"),
    "neither 8 nor 4 bits": (("bnb-int8", lambda s: {"quant_method": "bitsandbytes"}, {}), r"in neither 8 nor 4 bits"),
    "no static scale": (("modelopt-fp8", None, {"input_scale": None}), r"lacks .*q_proj\.input_scale"),
    "a scale a row": (("modelopt-fp8", None, {"input_scale": lambda t: t.expand(5).clone()}), r"input_scale has shape"),
    "weights of another type": (("modelopt-fp8", None, {"weight": lambda t: t.float().to(torch.int8)}),
                                r"q_proj\.weight is torch\.int8"),
    "scales of another weight": (("awq", None, {"qzeros": lambda t: t[:1]}), r"qzeros has shape \[1, 8\]"),
}  # fmt: skip


def test_a_static_scale_is_positive(tmp_path):
    scales = {f"model.layers.0.self_attn.{part}_proj.input_scale" for part in "qkv"}
    folder = altered(tmp_path, "modelopt-fp8")
    state = load_file(folder / "model.safetensors")
    save_file({n: t * 0 if n in scales else t for n, t in state.items()}, folder / "model.safetensors")
    with pytest.raises(VlmError, match=r"qkv\.input_scale is not positive"):
        convert_folder(folder, tmp_path / "checkpoint")


@pytest.mark.parametrize("name", BAD)
def test_a_bad_folder_is_one_sentence(name, tmp_path):
    (folder, settings, tensors), says = BAD[name]
    with pytest.raises(VlmError, match=says) as told:
        convert_folder(altered(tmp_path, folder, settings, **tensors), tmp_path / "checkpoint")
    assert "\n" not in str(told.value) and str(told.value).endswith(".") and not (tmp_path / "checkpoint").exists()


def test_a_folder_with_two_quantizations_is_refused(tmp_path):
    folder = altered(tmp_path, GPTQ)
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    with pytest.raises(VlmError, match=r"has two quantizations \(modelopt, gptq\); keep the configuration of the one"):
        convert_folder(folder, tmp_path / "checkpoint")


@pytest.mark.parametrize("kind", ["NVFP4", "MIXED_PRECISION", None])
def test_kinds_of_modelopt_that_are_not_read(kind, tmp_path):
    folder = altered(tmp_path, "modelopt-fp8")
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": kind}}))
    with pytest.raises(VlmError, match=rf"quantized by ModelOpt as {kind}; read are FP8"):
        convert_folder(folder, tmp_path / "checkpoint")


GROUP = {"weights": {"num_bits": 8, "type": "int", "strategy": "channel"}, "targets": ["Linear"]}
UNREAD = {
    "nvfp4": ({"format": "nvfp4-pack-quantized"}, {}, r"as nvfp4-pack-quantized with weights"),
    "blocks": ({}, {"weights": GROUP["weights"] | {"strategy": "block"}}, "blocks of weights"),
    "asymmetric inputs": ({}, {"input_activations": {"num_bits": 8, "symmetric": False, "strategy": "token"}},
                          r"and inputs int8 static asymmetric by token, which is not read"),
    "3 bits": ({"format": "pack-quantized"}, {"weights": GROUP["weights"] | {"num_bits": 3}}, "with weights int3"),
    "one zero point": ({"format": "pack-quantized"},  # which is not packed, as others are
                       {"weights": {"num_bits": 4, "symmetric": False, "strategy": "tensor"}}, "int4 static asymm"),
    "rotations": ({"transform_config": {"config_groups": {"a": {}}}}, {}, "with transform_config"),
    "sparse": ({"sparsity_config": {"format": "sparse-24-bitmask"}}, {}, "with sparsity_config"),
    "no groups": ({"config_groups": {}}, {}, "with config_groups without weights"),
    "outputs": ({}, {"output_activations": {"num_bits": 8}}, "with output_activations"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNREAD)
def test_schemes_of_compressed_tensors_that_are_not_read(name, tmp_path):
    changes, group, says = UNREAD[name]
    settings = {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"g": GROUP | group}}
    folder = altered(tmp_path, "bnb-int8", lambda _: settings | changes)
    with pytest.raises(VlmError, match=says) as told:
        convert_folder(folder, tmp_path / "checkpoint")
    assert str(told.value).endswith("the unquantized model.")
