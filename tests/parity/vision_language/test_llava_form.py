"""LLaVA in the form of its own repository (liuhaotian/llava-v1.5-7b) against the same model in Hugging Face's."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

from tests.kits.models import tiny
from tests.kits.publications.published_kit import facts
from visual_engines.images.image_processors import CLIP
from vlm.api.pipeline import Pipeline
from vlm.artifacts.hugging_face.chat_template import read_template
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.build.builder import build_engine
from vlm.config import BuildConfig, RuntimeConfig
from vlm.convert.folder import convert_folder
from vlm.errors import CheckpointError
from vlm.processing.media.image_processor import ImageProcessor

PUBLISHED = "liuhaotian__llava-v1.5-7b"
IMAGE, VOCAB, SIDE, ROWS = 59, 60, 16, 16


@pytest.fixture(scope="module")
def model():
    return tiny.llava(seed=3)


def write(model, folder, tower: str):
    """The model's parts under LLaVA's names. tower: "inside" of the checkpoint, or a folder's name for a whole CLIP."""
    folder.mkdir()
    text = model.config.text_config
    sizes = {name: getattr(text, name) for name in (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "max_position_embeddings")}  # fmt: skip
    config = facts(PUBLISHED) | sizes | {"mm_hidden_size": 24, "rms_norm_eps": text.rms_norm_eps}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps(facts(PUBLISHED, "generation_config.json")))
    named, tower_state = {}, {}
    for name, tensor in model.model.state_dict().items():
        part, _, rest = name.partition(".")
        if part == "vision_tower":
            tower_state[f"vision_model.{rest.removeprefix('vision_model.')}"] = tensor
        else:
            projector = {"linear_1": "mm_projector.0", "linear_2": "mm_projector.2"}.get(rest.partition(".")[0])
            named[f"model.{projector}.{rest.partition('.')[2]}" if projector else f"model.{rest}"] = tensor
    modules = ("model", *(f"model.layers.{i}.self_attn" for i in range(2)))
    frequencies = {f"{module}.rotary_emb.inv_freq": torch.ones(4) for module in modules}
    named |= {"lm_head.weight": model.lm_head.weight.data} | frequencies
    if tower == "inside":
        named |= {f"model.vision_tower.vision_tower.{name}": tensor for name, tensor in tower_state.items()}
    write_tower(model, folder / (tower if tower != "inside" else "vision_tower"), tower_state, tower == "inside")
    half = len(named) // 2
    files = {f"pytorch_model-0000{i + 1}-of-00002.bin": dict(list(named.items())[i * half : (i + 1) * half + i])
             for i in range(2)}  # fmt: skip
    for file, state in files.items():
        torch.save(state, folder / file)
    index = {"metadata": {}, "weight_map": {name: file for file, state in files.items() for name in state}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return folder


def write_tower(model, folder, state, without_weights):
    vision = model.config.vision_config
    whole = CLIPConfig(vision_config=vision.to_dict(), text_config={"hidden_size": 8, "num_hidden_layers": 1,
                       "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 20, "eos_token_id": 1,
                       "bos_token_id": 0}, projection_dim=8)  # fmt: skip
    clip = CLIPModel(whole)
    clip.vision_model.load_state_dict({name.removeprefix("vision_model."): tensor for name, tensor in state.items()})
    clip.save_pretrained(folder)
    if without_weights:
        (folder / "model.safetensors").unlink()
    settings = {"crop_size": SIDE, "do_center_crop": True, "feature_extractor_type": "CLIPFeatureExtractor",
                "resample": 3, "size": SIDE, "image_mean": [0.48145466, 0.4578275, 0.40821073]}  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))


@pytest.mark.parametrize("tower", ["vision_tower", "inside", "clip-vit-large-patch14-336"])
@torch.no_grad()
def test_tokens(model, tower, tmp_path):
    folder = write(model, tmp_path / "llava", tower)
    if tower.startswith("clip"):
        shutil.move(folder / tower, tmp_path / tower)  # beside the model
    checkpoint = convert_folder(folder, tmp_path / "checkpoint")
    assert Checkpoint.open(tmp_path / "checkpoint").family == "llava"
    pipe = Pipeline(
        build_engine(checkpoint, tmp_path / "engine", BuildConfig(max_seq_len=64)), RuntimeConfig(device="cpu")
    )
    pixels = torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    for images, prompt in (([0], [1, 5, IMAGE, 7, 9]), ([1, 0], [1, IMAGE, 8, IMAGE, 4])):
        ids = torch.tensor([[t for token in prompt for t in [token] * (ROWS if token == IMAGE else 1)]])
        out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values=pixels[images],
                             max_new_tokens=12, do_sample=False, eos_token_id=2, pad_token_id=0)  # fmt: skip
        rows = iter(range(VOCAB, VOCAB + ROWS * len(images)))
        ours = [t for token in prompt for t in ([next(rows) for _ in range(ROWS)] if token == IMAGE else [token])]
        found = pipe.generate(decoder_prompt_token_ids=ours, pixel_values=pixels[images], max_new_tokens=12)
        assert found.token_ids == out[0, ids.shape[1] :].tolist()


def test_pictures_are_padded_and_questions_put_as_llava_has_it(model, tmp_path):
    folder = write(model, tmp_path / "llava", "vision_tower")
    convert_folder(folder, tmp_path / "checkpoint")
    settings = json.loads((folder / "vision_tower" / "preprocessor_config.json").read_text())
    del settings["feature_extractor_type"]
    theirs = CLIPImageProcessor(**settings)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (30, 50, 3), np.uint8))
    square = Image.new("RGB", (50, 50), tuple(int(x * 255) for x in theirs.image_mean))
    square.paste(picture, (0, 10))
    found = ImageProcessor.from_dir(tmp_path / "checkpoint" / "processor", [CLIP])([picture])
    assert torch.equal(found, theirs([square], return_tensors="pt")["pixel_values"])
    assert "the human's questions. " in read_template(tmp_path / "checkpoint" / "processor", with_images=True)


def test_a_tower_that_cannot_be_had_is_said(model, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = write(model, tmp_path / "llava", "vision_tower")
    shutil.rmtree(folder / "vision_tower")
    with pytest.raises(
        CheckpointError, match=r"openai/clip-vit-large-patch14-336 .*; put that model's folder .* there as"
    ):
        convert_folder(folder, tmp_path / "checkpoint")
