"""transformers loads what is exported for compressed-tensors, of each kind of model, and computes what we compute."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from tests import tiny
from tests.parity.cases import mostly_slow
from tests.quantized_folders import quantized_checkpoint
from vlm.api.pipeline import Pipeline
from vlm.artifacts.checkpoint import Checkpoint
from vlm.build.builder import build_engine
from vlm.config import BuildConfig, RuntimeConfig
from vlm.convert.folder import convert_folder
from vlm.convert.quantized.export import export_compressed_tensors

pytest.importorskip("compressed_tensors")
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
    ids = torch.tensor([[model.config.image_token_index] * visual.num_features + TEXT])
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


COMPRESSED = ("llava", "nougat", "trocr", "idefics3", "qwen_vl", "lighton_ocr", "llama", "opt")


@pytest.mark.parametrize("name", mostly_slow({name: name for name in COMPRESSED}, ("llava", "nougat")))
@pytest.mark.parametrize("method", ["int8"])
def test_an_export_runs_as_it_is(name, method, tmp_path):
    model, checkpoint, folder = exported(name, method, tmp_path)
    check_computes_the_same(name, checkpoint, tmp_path, type(model).from_pretrained(folder, dtype=torch.float32))
