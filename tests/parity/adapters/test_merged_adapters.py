"""Adapters with tensors of the model itself, merged: tokens of PEFT's models, FP32 on the CPU."""

from __future__ import annotations

import shutil

import pytest
import torch
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from transformers import LlamaForCausalLM

from tests.kits.models import tiny
from tests.kits.models.adapted import QUESTION, answer, trained
from tests.kits.models.families import image_size
from tests.kits.models.lora_kit import Q, adapter_folder, matrices
from tests.parity.vision_language.test_llava_form import write as write_form
from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.build.builder import build_engine
from vlm.build.from_model import convert_model
from vlm.config import BuildConfig, RuntimeConfig
from vlm.errors import VlmError

CASES = {
    "llama": (
        lambda: tiny.llama(seed=3, num_key_value_heads=2),
        lambda: LoraConfig(r=3, modules_to_save=["embed_tokens", "lm_head", "norm", "k_proj"], use_dora=True),
    ),
    "bart": (
        lambda: tiny.bart(seed=5, logits_bias=True),
        lambda: LoraConfig(r=3, bias="all", modules_to_save=["fc1", "final_layer_norm"]),
    ),
    "t5": (lambda: tiny.t5(seed=1, tied=False), lambda: LoraConfig(r=3, bias="all", modules_to_save=["lm_head"])),
    "gpt2": (
        lambda: tiny.gpt2(seed=1),
        lambda: LoraConfig(r=3, bias="lora_only", modules_to_save=["mlp"], fan_in_fan_out=True),
    ),
    "gpt2 scaled": (
        lambda: tiny.gpt2(seed=1),
        lambda: IA3Config(modules_to_save=["ln_1"], init_ia3_weights=False, fan_in_fan_out=True),
    ),
}


def tuned(make, config) -> PeftModel:
    """A model with an adapter, and with all else that is trained changed."""
    torch.manual_seed(0)
    model = trained(get_peft_model(make(), config).eval())
    for values in model.parameters():
        if values.requires_grad:
            values.data += 0.2 * torch.randn_like(values)
    return model


def merged(model, folder, tmp_path) -> Pipeline:
    """What `vlm convert --merge-lora` makes of a model."""
    model.save_pretrained(tmp_path / "hf")
    out = convert_model(tmp_path / "hf", tmp_path / "merged", merge_lora=folder)
    engine = build_engine(Checkpoint.open(out), tmp_path / "engine", BuildConfig(max_batch_size=4))
    return Pipeline(engine, RuntimeConfig(device="cpu"))


@pytest.mark.parametrize("case", CASES)
def test_tensors_of_the_model_take_the_place_of_its_own(case, tmp_path):
    make, config = CASES[case]
    peft = tuned(make, config())
    peft.save_pretrained(tmp_path / "adapter")
    model, pipe = make(), merged(make(), tmp_path / "adapter", tmp_path)
    is_text = model.config.is_encoder_decoder
    texts = (tiny.texts if is_text else tiny.prompts)(model, (17, 9))
    find, key = (tiny.hf_text, "encoder_input_ids") if is_text else (tiny.hf_continued, "input_ids")
    want = [find(peft.get_base_model(), text, 12) for text in texts]
    assert want != [find(model, text, 12) for text in texts]
    found = pipe.generate([{key: text} for text in texts], max_new_tokens=12)
    assert [out.token_ids for out in found] == want


OWN = "base_model.model.model."  # LLaVA's own names


def in_own_form(peft: PeftModel, folder) -> None:
    """Writes what LLaVA's scripts do of an adapter of llava-hf's model, which has a projector."""
    names = {"model.language_model.": "model.", "model.multi_modal_projector.linear_1.": "model.mm_projector.0.",
             "model.multi_modal_projector.linear_2.": "model.mm_projector.2."}  # fmt: skip
    tensors = {name: values.detach() for name, values in peft.named_parameters() if values.requires_grad}
    for theirs, own in names.items():
        tensors = {name.replace(theirs, own).replace(".modules_to_save.default", ""): x for name, x in tensors.items()}
    lora = {name.replace(".default", ""): values for name, values in tensors.items() if "lora_" in name}
    adapter_folder(folder, lora, r=3, lora_alpha=8, bias="none", target_modules=["q_proj", "up_proj"])
    torch.save({n: x for n, x in tensors.items() if "lora_" not in n}, folder / "non_lora_trainables.bin")


CONVOLUTIONS = {
    "qwen-vl": (lambda: tiny.qwen_vl(seed=1), lambda: LoraConfig(r=3, target_modules=["q_proj", "qkv", "proj"])),
    "lighton-ocr": (
        lambda: tiny.lighton_ocr(seed=7),
        lambda: LoraConfig(r=3, target_modules=["patch_conv", "q_proj"], use_dora=True),
    ),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_a_convolution_of_patches_is_a_linear_layer(case, tmp_path):
    """PEFT's names of Qwen's visual attention, `proj`, are that of its patches, too."""
    make, config = CONVOLUTIONS[case]
    peft = tuned(make, config())
    peft.save_pretrained(tmp_path / "adapter")
    pipe = merged(make(), tmp_path / "adapter", tmp_path)
    vision = pipe.llm.encoders.visual.config
    pixels = torch.randn(1, 3, *image_size(vision), generator=torch.Generator().manual_seed(1))
    rows = vision.rows_of(*image_size(vision))
    inputs = {"decoder_prompt_token_ids": [*range(60, 60 + rows), *QUESTION], "pixel_values": pixels}
    want = answer(peft, pixels, rows, 10, has_encoder=False)
    assert pipe.generate(inputs, max_new_tokens=10).token_ids == want
    assert want != answer(make(), pixels, rows, 10, has_encoder=False)


def test_a_projector_beside_an_adapter_of_llava_is_merged(tmp_path):
    make = lambda: tiny.llava(seed=3)  # noqa: E731
    modules = r".*language_model.*\.(q_proj|up_proj)"
    # by the end of its name, as PEFT has it
    config = LoraConfig(r=3, lora_alpha=8, target_modules=modules, modules_to_save=["projector"])
    peft = tuned(make, config)
    peft.save_pretrained(tmp_path / "peft")
    in_own_form(peft, tmp_path / "own")
    for form in ("peft", "own"):
        pipe = merged(make(), tmp_path / form, tmp_path / f"{form}.out")
        vision = pipe.llm.encoders.visual.config
        pixels = torch.randn(1, 3, *vision.image_size, generator=torch.Generator().manual_seed(1))
        want = answer(peft, pixels, vision.num_features, 10, has_encoder=False)
        assert want != answer(make(), pixels, vision.num_features, 10, has_encoder=False)
        ids = [*range(60, 60 + vision.num_features), *QUESTION]
        inputs = {"decoder_prompt_token_ids": ids, "pixel_values": pixels}
        assert pipe.generate(inputs, max_new_tokens=10).token_ids == want


@pytest.mark.parametrize("safe", [True, False])
def test_a_language_model_becomes_the_llava_that_an_adapter_of_llavas_own_form_describes(safe, tmp_path):
    """As liuhaotian/llava-v1.5-7b-lora is beside Vicuna: config.json and projector lie in the adapter's folder."""
    make = lambda: tiny.llava(seed=3)  # noqa: E731
    modules = r".*language_model.*\.(q_proj|up_proj)"
    config = LoraConfig(r=3, lora_alpha=8, target_modules=modules, modules_to_save=["multi_modal_projector"])
    peft, folder = tuned(make, config), tmp_path / "own"
    in_own_form(peft, folder)
    write_form(make(), tmp_path / "form", "vision_tower")
    shutil.copy(tmp_path / "form" / "config.json", folder)
    base = LlamaForCausalLM(make().config.text_config)
    base.model.load_state_dict(make().model.language_model.state_dict())
    base.lm_head.load_state_dict(make().lm_head.state_dict())
    base.save_pretrained(tmp_path / "vicuna")
    if not safe:
        torch.save(base.state_dict(), tmp_path / "vicuna" / "pytorch_model.bin")
        (tmp_path / "vicuna" / "model.safetensors").unlink()
    with pytest.raises(
        VlmError, match=rf"{folder} lacks its vision tower.*put that model's folder .* there as {folder}"
    ):
        convert_model(tmp_path / "vicuna", tmp_path / "merged", merge_lora=folder)
    shutil.copytree(tmp_path / "form" / "vision_tower", folder / "vision_tower")
    out = convert_model(tmp_path / "vicuna", tmp_path / "merged", merge_lora=folder)
    assert Checkpoint.open(out).family == "llava" and Checkpoint.open(out).manifest["source"] == "vicuna"
    pixels = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    engine = build_engine(Checkpoint.open(out), tmp_path / "engine", BuildConfig(max_batch_size=4))
    inputs = {"decoder_prompt_token_ids": [*range(60, 76), *QUESTION], "pixel_values": pixels}
    found = Pipeline(engine, RuntimeConfig(device="cpu")).generate(inputs, max_new_tokens=10)
    assert found.token_ids == answer(peft, pixels, 16, 10, has_encoder=False)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"x": print}, "Python objects other than tensors, which could run code"),
        ([torch.ones(2)], "is no state dict of tensors by name"),
        ({"base_model.model.model.layers.0.lora_A.weight": torch.ones(2)}, "holds parts of an adapter"),
        (None, "is damaged or truncated"),
    ],
)
def test_weights_beside_an_adapter_that_are_no_tensors(content, sentence, tmp_path):
    tiny.llama().save_pretrained(tmp_path / "hf")
    folder = adapter_folder(tmp_path / "a", matrices(torch.ones(2, 32), torch.ones(32, 2)))
    torch.save(content, folder / "non_lora_trainables.bin")
    if content is None:
        (folder / "non_lora_trainables.bin").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(VlmError, match=sentence):
        convert_model(tmp_path / "hf", tmp_path / "out", merge_lora=folder)


@pytest.mark.parametrize("name", ["encoder.embed_tokens", "decoder.embed_tokens", "shared"])
def test_embeddings_that_several_modules_share_are_not_lost(name, tmp_path):
    """Whichever of their names an adapter has them under."""
    tiny.bart(seed=5).save_pretrained(tmp_path / "hf")
    module = "model.encoder.layers.0.self_attn.q_proj"
    tensors = matrices(torch.ones(2, 32), torch.ones(32, 2), module)
    tensors |= {f"base_model.model.model.{name}.weight": torch.ones(60, 32)}
    with pytest.raises(VlmError, match=rf"model.{name}.weight is one tensor with others in this model"):
        convert_model(tmp_path / "hf", tmp_path / "out", merge_lora=adapter_folder(tmp_path / "a", tensors))


HEAD = {"base_model.model.lm_head.weight": torch.ones(60, 32)}


@pytest.mark.parametrize(
    ("tensors", "config", "sentence"),
    [
        ({"base_model.model.lm_head.weight": torch.ones(61, 32)}, {}, r"lm_head.weight becomes \[61, 32\] and should be"
         r" \[60, 32\]; vocabularies that were resized are merged with PEFT"),
        ({"base_model.model.model.embed_tokens.weight": torch.ones(61, 32)}, {}, "vocabularies that were resized"),
        ({}, {"modules_to_save": ["lm_head"]}, r"lacks its modules_to_save lm_head; fetch or save it again,"
         " or, where its model has no such modules, take their names out of its adapter_config.json"),
        ({"base_model.model.model.nothing.weight": torch.ones(2)}, {}, "model.nothing.weight is no tensor of its"),
        ({"base_model.model.lm_head.weight": torch.full((60, 32), torch.nan)}, {}, "lm_head.weight has values that"),
        ({f"base_model.model.{Q}.weight": torch.ones(32, 32)}, {}, "both replaces model.layers.0.self_attn"),
        ({f"base_model.model.{Q[:-6]}k_proj.weight": torch.ones(3, 5)}, {},  "k_proj.weight becomes"),
        (matrices(torch.ones(2, 32), torch.ones(60, 2), "lm_head"), {"tied": True}, "model: lm_head.weight is one"),
        (HEAD, {"tied": True}, r"lm_head.weight is one tensor with others in this model \(tied embeddings\)"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit(tensors, config, sentence, tmp_path):
    config = dict(config)
    tiny.llama(tie_word_embeddings=config.pop("tied", False)).save_pretrained(tmp_path / "hf")
    folder = adapter_folder(tmp_path / "a", matrices(torch.ones(2, 32), torch.ones(32, 2)) | tensors, **config)
    with pytest.raises(VlmError, match=sentence):
        convert_model(tmp_path / "hf", tmp_path / "out", merge_lora=folder)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("tensors", [matrices(torch.full((2, 32), 300.0), torch.full((32, 2), 300.0)),
                                     {"base_model.model.lm_head.weight": torch.full((60, 32), 7e4)}])  # fmt: skip
def test_sums_that_are_too_large_for_the_models_type(tensors, tmp_path):
    """They would be infinite, and every token of the merged model the first one."""
    tiny.llama().half().save_pretrained(tmp_path / "hf")
    folder = adapter_folder(tmp_path / "a", matrices(torch.zeros(2, 32), torch.zeros(32, 2)) | tensors)
    with pytest.raises(VlmError, match=r"has values that make those of .*weight too large for float16; convert its"):
        convert_model(tmp_path / "hf", tmp_path / "out", merge_lora=folder)
    assert not (tmp_path / "out").exists()
