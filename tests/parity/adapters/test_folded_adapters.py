"""Adapters of models in which a quantization has folded scales into the layers before: what adds to these layers is
refused where that is known and warned of where it may be; what scales them has the tokens that it has without."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import replace

import pytest
import torch

from tests.kits.models import tiny
from tests.kits.models.lora_kit import adapter_folder, matrices, random_adapter, random_ia3
from tests.kits.quantized_folders import FOLDERS
from tests.parity.quantization.test_compressed_export import MODELS, SCALED, calibrated
from vlm.api.model import adapters
from vlm.api.model.adapters import read_adapter
from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.build.builder import build_engine
from vlm.config import BuildConfig, RuntimeConfig
from vlm.convert.folder import convert_folder
from vlm.convert.quantized.export import export_compressed_tensors
from vlm.convert.split import split_checkpoint
from vlm.errors import InputError, VlmWarning

# of each model: modules without folded scales on either side, and the others
PLAIN = {
    "llama": ["self_attn.o_proj"],  # two heads of values for four of queries
    "bart": ["self_attn.q_proj", "self_attn.k_proj"],  # the residual stream reads its norms
}
FOLDED = {
    "llama": ["self_attn.q_proj"],
    "bart": ["self_attn.v_proj", "self_attn.out_proj", "encoder_attn.v_proj", "encoder_attn.out_proj"],
}
LAYER = {"llama": "model.layers.0", "bart": "model.decoder.layers.0"}
Q = "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module", params=LAYER)
def quantized(request, tmp_path_factory):
    """A model's name and the engine of what AWQ has made of it, some of its scales folded."""
    folder = tmp_path_factory.mktemp(request.param)
    checkpoint = calibrated(request.param, folder, replace(SCALED["awq"], scales=None))
    return request.param, build_engine(checkpoint, folder / "engine", BuildConfig(max_batch_size=4))


def test_what_adds_to_layers_with_folded_scales_is_refused(quantized, tmp_path):
    name, engine = quantized
    for number, module in enumerate(FOLDED[name]):
        folder = random_adapter(tmp_path / str(number), f"{LAYER[name]}.{module}", seed=1)
        with pytest.raises(InputError, match=r"adds to decoder\.blocks\.0\.\S+, into which vlm quantize has folded"):
            read_adapter(engine, folder)
    pipe = Pipeline(engine, RuntimeConfig(device="cpu", max_loras=1))
    with pytest.raises(InputError, match="give --scales separate when you quantize, or merge the adapter first"):
        pipe.load_lora("a", folder)


def test_what_adds_to_others_is_loaded(quantized, tmp_path):
    name, engine = quantized
    folder = random_adapter(tmp_path, *(f"{LAYER[name]}.{module}" for module in PLAIN[name]), seed=1)
    [path] = read_adapter(engine, folder)["decoder"]
    assert path.startswith("blocks.0.")


def test_what_scales_is_the_same_wherever_scales_stand(quantized, tmp_path):
    name, engine = quantized
    modules = [f"{LAYER[name]}.{module}" for module in (*PLAIN[name], *FOLDED[name])]
    folder = random_ia3(tmp_path / "a", *modules, seed=2)
    separate = calibrated(name, tmp_path, replace(SCALED["awq"], scales="separate"))
    found = []
    for each in (engine, build_engine(separate, tmp_path / "engine", BuildConfig(max_batch_size=4))):
        pipe = Pipeline(each, RuntimeConfig(device="cpu", lora=(f"a={folder}",)))
        inputs = {pipe.capabilities.id_field: [4, 9, 17, 30, 8]}
        found += [[pipe.generate(inputs, max_new_tokens=12, lora=lora).token_ids for lora in ("a", None)]]
    assert found[0] == found[1] and found[0][0] != found[0][1]
    read_adapter(
        each, random_adapter(tmp_path / "b", modules[-1], seed=1, width=32)
    )  # separate scales leave x as it is


def test_what_is_refused_is_what_would_compute_something_else(quantized, tmp_path, monkeypatch):
    """Each Linear of a layer, beside the same with all scales in front of their layers."""
    name, engine = quantized
    separate = calibrated(name, tmp_path, replace(SCALED["awq"], scales="separate"))
    engines = engine, build_engine(separate, tmp_path / "engine", BuildConfig(max_batch_size=4))
    pipes = [Pipeline(each, RuntimeConfig(device="cpu", max_loras=1, max_lora_rank=2)) for each in engines]
    generator, refused = torch.Generator().manual_seed(0), {}
    for number, (module, linear) in enumerate(linears(name).items()):
        a, b = (torch.randn(size, generator=generator) for size in ((2, linear.in_features), (linear.out_features, 2)))
        folder = adapter_folder(tmp_path / str(number), matrices(a, b, module))
        try:
            read_adapter(engine, folder)
        except InputError:
            refused[module] = True
        with monkeypatch.context() as patch:
            patch.setattr(adapters, "check_scales", lambda *_: None)
            one, other = (logits_with(pipe, folder) for pipe in pipes)
        assert refused.setdefault(module, False) != torch.allclose(one, other, atol=1e-3), module
    assert len(set(refused.values())) == 2


def linears(name: str) -> dict[str, torch.nn.Linear]:
    """Those of the first layers of Hugging Face's model."""
    modules = MODELS[name]().named_modules()
    return {path: module for path, module in modules if isinstance(module, torch.nn.Linear) and ".layers.0." in path}


def logits_with(pipe: Pipeline, folder) -> torch.Tensor:
    """The logits of the first token."""
    pipe.load_lora("a", folder)
    inputs = {pipe.capabilities.id_field: [4, 9, 17, 30, 8], "lora": "a"}
    output = pipe.generate(inputs, max_new_tokens=1, ignore_eos=True, return_generation_logits=True)
    pipe.unload_lora("a")
    return output.generation_logits


def test_ranks_parts_say_it_too(quantized, tmp_path):
    name, engine = quantized
    parts = split_checkpoint(Checkpoint.open(engine.path.parent / "small"), tmp_path / "parts", BuildConfig(tp_size=2))
    split = build_engine(parts, tmp_path / "engine", BuildConfig(max_batch_size=4, tp_size=2))
    with pytest.raises(InputError, match="has folded scales"):
        read_adapter(split, random_adapter(tmp_path / "a", f"{LAYER[name]}.{FOLDED[name][-1]}", seed=1))


# --- folders, beside which an adapter may have been trained


def engine_of(source, folder):
    return build_engine(convert_folder(source, folder / "checkpoint"), folder / "engine", BuildConfig())


def test_an_exported_folder_says_it(tmp_path):
    checkpoint = calibrated("llama", tmp_path, SCALED["awq"])
    export = export_compressed_tensors(checkpoint, tmp_path / "export", like=tmp_path / "hf")
    engine = engine_of(export, tmp_path / "again")
    with pytest.warns(VlmWarning, match=r"decoder\.blocks\.0\.attention\.qkv, and the model comes from a folder"):
        read_adapter(engine, random_adapter(tmp_path / "a", Q, seed=1))


def test_a_recipe_beside_compressed_tensors_says_it(tmp_path):
    plain = replace(SCALED["awq"], format="int4", scales=None)
    tiny.llama(seed=3, num_key_value_heads=2).save_pretrained(tmp_path / "hf")
    export = export_compressed_tensors(calibrated("llama", tmp_path, plain), tmp_path / "export", like=tmp_path / "hf")
    adapter = random_adapter(tmp_path / "a", Q, seed=1)
    recipe = "default_stage:\n  default_modifiers:\n    {}:\n      targets: [Linear]\n"
    for number, (step, folds) in enumerate({"GPTQModifier": False, "SmoothQuantModifier": True}.items()):
        (export / "recipe.yaml").write_text(recipe.format(step))
        engine = engine_of(export, tmp_path / str(number))
        assert warnings_of(engine, adapter) == folds


def warnings_of(engine, adapter) -> bool:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read_adapter(engine, adapter)
    return any("have scales of others folded" in str(each.message) for each in caught)


@pytest.mark.filterwarnings("ignore:.*is quantized")
@pytest.mark.parametrize(
    ("name", "module", "folds"),
    [
        ("awq", "q_proj", True),
        ("gptq-asymmetric", "q_proj", False),
        ("modelopt-int4-awq", "q_proj", True),
        ("modelopt-int4-awq", "o_proj", False),  # its scale stays with it
        ("modelopt-int8-sq", "q_proj", False),
    ],
)
def test_programs_that_fold_by_themselves(name, module, folds, tmp_path):
    width = json.loads((FOLDERS / name / "config.json").read_text())["hidden_size"]
    shutil.copytree(FOLDERS / name, tmp_path / "hf")
    engine = engine_of(tmp_path / "hf", tmp_path)
    adapter = random_adapter(tmp_path / "a", f"model.layers.0.self_attn.{module}", seed=1, width=width)
    assert warnings_of(engine, adapter) == folds
