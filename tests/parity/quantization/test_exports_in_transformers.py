"""transformers loads what is exported for compressed-tensors, of each kind of model, and computes what we compute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import CompressedTensorsConfig

from tests.kits.models import tiny
from tests.kits.quantized_folders import quantized_checkpoint
from tests.parity.cases import SLOW, mostly_slow
from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.build.builder import build_engine
from vlm.config import BuildConfig, RuntimeConfig
from vlm.convert.folder import convert_folder
from vlm.convert.quantized.export import export_compressed_tensors, layer_tensors
from vlm.convert.quantized.in_transformers import must_dequantize
from vlm.layers.quant.int4 import Int4

pytest.importorskip("compressed_tensors")
pytestmark = pytest.mark.filterwarnings("ignore:You passed `quantization_config`:UserWarning")
NEW, TEXT = 6, [5, 9, 11, 7]
TEXTS = {
    "llama": lambda: tiny.llama(seed=3, num_key_value_heads=2),
    "opt": lambda: tiny.opt(seed=2),
    "starcoder": lambda: tiny.gpt2(seed=1, multi_query=True),
    "t5": lambda: tiny.t5(seed=1, tied=False),
    "bart": lambda: tiny.bart(seed=5),
    "m2m100": tiny.m2m100,
    "marian": tiny.marian,
    "pegasus": tiny.pegasus,
    "t5gemma": tiny.t5gemma,
    "t5gemma2": tiny.t5gemma2,
    "idefics3": tiny.idefics3,
    "qwen_vl": tiny.qwen_vl,
    "lighton_ocr": tiny.lighton_ocr,
}
PAGES = {"nougat": lambda: tiny.nougat(seed=3, spread=0.15), "trocr": tiny.trocr}
QUESTIONS = {
    "llava": lambda: tiny.llava(seed=3),
    "blip2-opt": lambda: tiny.blip2("opt", seed=1),
    "blip2-t5": lambda: tiny.blip2("t5", seed=7, spread=0.4),
}
OTHERS = {"pix2struct": tiny.pix2struct, "florence2": tiny.florence2}
MODELS = TEXTS | PAGES | QUESTIONS | OTHERS


def exported(name: str, method: str, folder: Path):
    """Returns a model, its quantized checkpoint and the folder that it is exported to."""
    model = MODELS[name]()
    model.save_pretrained(folder / "hf")
    options = {"group_size": 8} if "int4" in method else {}
    plain = convert_folder(folder / "hf", folder / "plain")
    checkpoint = quantized_checkpoint(plain, folder / "small", method, **options)
    return model, checkpoint, export_compressed_tensors(checkpoint, folder / "export", like=folder / "hf")


def loaded(name: str, folder: Path, dequantizes: bool):
    """Returns an export as transformers loads it."""
    options: dict[str, Any] = {"dtype": torch.float32}
    if dequantizes:
        options["quantization_config"] = CompressedTensorsConfig(run_compressed=False)
    return type(MODELS[name]()).from_pretrained(folder, **options)


def inputs_of(name: str, pipe: Pipeline, model) -> tuple[dict, dict]:
    """Returns one input, as we take it and as Hugging Face's `generate` does."""
    field = pipe.capabilities.id_field
    if name in PAGES:
        pixels = tiny.images(model, 1)
        return {"pixel_values": pixels[0]}, {"pixel_values": pixels}
    if name in TEXTS:
        return {field: TEXT}, {"input_ids": torch.tensor([TEXT])}
    visual = pipe.llm.encoders.visual.config
    pixels = torch.randn(1, 3, *visual.image_size, generator=torch.Generator().manual_seed(1))
    mark = getattr(model.config, "image_token_index", None) or model.config.image_token_id
    ids = torch.tensor([[mark] * visual.num_features + TEXT])
    rows = range(model.config.text_config.vocab_size, model.config.text_config.vocab_size + visual.num_features)
    theirs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels}
    return {field: [*rows, *TEXT], "pixel_values": pixels}, theirs


def check_computes_the_same(name: str, checkpoint: Checkpoint, folder: Path, model) -> None:
    """Compares greedy tokens, and the logits that each was chosen by."""
    has_encoder = "encoder" in checkpoint.roles
    build = BuildConfig(max_seq_len=40, max_encoder_input_len=40) if has_encoder else BuildConfig()
    pipe = Pipeline(build_engine(checkpoint, folder / "engine", build), RuntimeConfig(device="cpu"))
    ours, theirs = inputs_of(name, pipe, model)
    [found] = pipe.generate([ours], max_new_tokens=NEW, return_generation_logits=True, loop_detection=False)
    with torch.no_grad():
        want = model.eval().generate(
            **theirs, max_new_tokens=NEW, do_sample=False, num_beams=1, output_logits=True, return_dict_in_generate=True
        )
    assert found.token_ids == want.sequences[0, -len(want.logits) :].tolist()
    torch.testing.assert_close(found.generation_logits, torch.cat(want.logits), atol=5e-4, rtol=1e-4)


@torch.no_grad()
def first_logits(model, inputs: dict) -> torch.Tensor:
    """Returns Hugging Face's logits [1, V] of the first new token."""
    options = {"max_new_tokens": 1, "do_sample": False, "num_beams": 1, "output_logits": True}
    return model.eval().generate(**inputs, **options, return_dict_in_generate=True).logits[0]


@pytest.mark.parametrize("name", mostly_slow({name: name for name in MODELS}, ("llava", "nougat", "trocr", "blip2-t5")))
def test_what_transformers_takes_for_quantized_is_what_is(name, tmp_path):
    from compressed_tensors.utils import match_named_modules

    model, _, folder = exported(name, "int8", tmp_path)
    settings = json.loads((folder / "config.json").read_text())["quantization_config"]
    found = [
        list(module.get_parameter("weight").shape)
        for _, module in match_named_modules(model, ["Linear"], settings["ignore"])
    ]
    with safe_open(folder / "model.safetensors", "pt") as file:
        want = [file.get_tensor(key).tolist() for key in file.keys() if key.endswith(".weight_shape")]  # noqa: SIM118
    assert sorted(found) == sorted(want)


NAMES = {name: name for name in MODELS if name != "pix2struct"}  # whose inputs are cut by its processor


@pytest.mark.parametrize("name", mostly_slow(NAMES, ("llava", "nougat", "t5", "blip2-opt")))
@pytest.mark.parametrize("method", ["int8", pytest.param("int4", marks=SLOW)])
def test_an_export_is_run_as_it_is_said_to_be_loaded(name, method, tmp_path):
    _, checkpoint, folder = exported(name, method, tmp_path)
    check_computes_the_same(name, checkpoint, tmp_path, loaded(name, folder, must_dequantize(checkpoint)))


@pytest.mark.parametrize("name", mostly_slow(NAMES, ("opt",)))
def test_an_asymmetric_export_is_dequantized_as_it_is_loaded(name, tmp_path):
    _, checkpoint, folder = exported(name, "int4-asymmetric", tmp_path)
    assert must_dequantize(checkpoint)
    check_computes_the_same(name, checkpoint, tmp_path, loaded(name, folder, True))


AS_THEY_ARE = ("llama", "opt", "starcoder", "llava", "nougat", "trocr", "idefics3", "qwen_vl", "lighton_ocr")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["w8a8", "fp8"])
@pytest.mark.parametrize("name", AS_THEY_ARE)
def test_an_export_whose_inputs_are_rounded_is_near_the_dequantized_one(name, method, tmp_path):
    model, checkpoint, folder = exported(name, method, tmp_path)
    assert not must_dequantize(checkpoint)
    pipe = Pipeline(build_engine(checkpoint, tmp_path / "engine", BuildConfig()), RuntimeConfig(device="cpu"))
    _, theirs = inputs_of(name, pipe, model)
    found, want = (first_logits(loaded(name, folder, dequantizes), theirs) for dequantizes in (False, True))
    torch.testing.assert_close(found, want, atol=0.2 * float(want.abs().max()), rtol=0)
    assert not torch.equal(found, want)


RUN = {"t5": "none", "m2m100": "none", "blip2-opt": "none", "starcoder": "unpacked", "pix2struct": "unpacked",
       "nougat": "all", "llava": "all", "llama": "all"}  # fmt: skip


@pytest.mark.parametrize("name", RUN)
def test_families_say_which_of_their_weights_run_as_they_are(name, tmp_path):
    found = []
    for method in ("int8", "w8a8"):
        _, checkpoint, _ = exported(name, method, tmp_path / method)
        found.append(must_dequantize(checkpoint))
    assert found == {"none": [True, True], "unpacked": [True, False], "all": [False, False]}[RUN[name]]


def test_packed_tensors_are_those_of_the_library():
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    weight = torch.randn(20, 32, generator=torch.Generator().manual_seed(0))
    parameters = Int4(8, symmetric=False).quantize(weight)
    arguments = QuantizationArgs(num_bits=4, symmetric=False, group_size=8)
    dense: dict[str, Any] = {"weight": weight, "weight_scale": parameters["weight_scale"],
                             "weight_zero_point": (parameters["weight_zero"].int() - 8).to(torch.int8)}  # fmt: skip
    library = BaseCompressor.get_value_from_registry("pack-quantized")
    want: dict[str, Any] = library.compress(dense, QuantizationScheme(targets=["Linear"], weights=arguments))
    found = {name: read() for name, read in layer_tensors(parameters, packs=True).items()}
    assert found.keys() == want.keys()
    for name, tensor in want.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
