"""VILA folders, written as they are published, against the same maths put together of Hugging Face's modules."""

from __future__ import annotations

import json
import re

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from transformers import CLIPVisionConfig, CLIPVisionModel, SiglipVisionConfig, SiglipVisionModel

from tests.kits.models import tiny
from tests.kits.publications.published_kit import facts
from tests.parity.cases import parity
from visual_engines.images.image_processors import SIGLIP, preferring
from vlm.api.pipeline import Pipeline
from vlm.build.builder import build_engine
from vlm.config import BuildConfig, RuntimeConfig
from vlm.convert.folder import convert_folder
from vlm.errors import CheckpointError, ConfigError
from vlm.processing.media.image_processor import ImageProcessor

ROWS = "<image>"


class Vila:
    """A tower, a projector and a LLaMA."""

    def __init__(self, siglip: bool, projector: str, size: int = 20, seed: int = 0, layer: int = -2):
        shape = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 3,
                 "image_size": size, "patch_size": 4}  # fmt: skip
        torch.manual_seed(seed)
        kinds = (SiglipVisionConfig, SiglipVisionModel) if siglip else (CLIPVisionConfig, CLIPVisionModel)
        self.tower = tiny.pull_apart(kinds[1](kinds[0](**shape)), seed, 0.2)
        self.llm = tiny.llama(seed=seed + 1, spread=0.25, max_position_embeddings=256)
        self.kind, self.size, self.layer, self.siglip = projector, size, layer, siglip
        width = 96 if projector == "mlp_downsample" else 24
        first = [nn.Identity(), nn.LayerNorm(width)] if projector == "mlp_downsample" else []
        depth = {"linear": 1, "mlp_downsample": 2}.get(projector) or int(projector[3])
        layers = [nn.Linear(width, 32)]
        for _ in range(depth - 1):
            layers += [nn.GELU(), nn.Linear(32, 32)]
        self.projector = nn.Sequential(*first, *layers).eval() if depth > 1 else layers[0].eval()
        for parameter in self.projector.parameters():
            parameter.data += torch.randn(parameter.shape) * 0.3

    @torch.no_grad()
    def features(self, pixels):
        x = self.tower(pixels, output_hidden_states=True).hidden_states[self.layer]
        x = x if self.siglip else x[:, 1:]
        if self.kind == "mlp_downsample":
            x = torch.stack([self.cells(one) for one in x])
        return self.projector(x)

    def cells(self, x):
        """Cell by cell, down the columns; what lies beyond an odd side is zero."""
        side = int(len(x) ** 0.5)
        at = lambda r, c: x[r * side + c] if r < side and c < side else torch.zeros(24)  # noqa: E731
        half = range(-(-side // 2))
        parts = lambda r, c: [at(2 * r + i, 2 * c + j) for i in (0, 1) for j in (0, 1)]  # noqa: E731
        return torch.stack([torch.cat(parts(r, c)) for c in half for r in half])

    @torch.no_grad()
    def continued(self, prompt, pixels, new):
        rows, learned = [], self.llm.get_input_embeddings().weight
        features = iter(self.features(pixels)) if len(pixels) else iter(())
        for token in prompt:
            rows += list(next(features)) if token == ROWS else [learned[token]]
        found = []
        while len(found) < new and (not found or found[-1] != 2):
            logits = self.llm(inputs_embeds=torch.stack(rows)[None], use_cache=False).logits
            found.append(int(logits[0, -1].argmax()))
            rows.append(learned[found[-1]])
        return found

    # --- folders ---
    def settings(self):
        return {
            "mm_vision_select_layer": self.layer, "mm_vision_select_feature": "cls_patch" if self.siglip else "patch",
            "mm_hidden_size": 24, "hidden_size": 32, "s2": False, "image_aspect_ratio": "resize",
            "num_video_frames": 8, "mm_use_im_start_end": False,
        }  # fmt: skip

    def write(self, folder):
        """VILA-1.5: a folder a part."""
        self.llm.save_pretrained(folder / "llm")
        self.tower.save_pretrained(folder / "vision_tower")
        (folder / "mm_projector").mkdir()
        config = {"model_type": "v2l_projector", "mm_projector_type": self.kind}
        (folder / "mm_projector" / "config.json").write_text(json.dumps(config))
        save_file({f"layers.{n}": x for n, x in self.projector.state_dict().items()},
                  folder / "mm_projector" / "model.safetensors")  # fmt: skip
        self.write_processor(folder / "vision_tower")
        config = {"model_type": "llava_llama", "architectures": ["LlavaLlamaModel"], **self.settings()}
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    def write_flat(self, folder, *, inside: bool):
        """VILA-1: one checkpoint, its tower in it or beside it."""
        folder.mkdir()
        state = dict(self.llm.state_dict())
        state |= {f"model.mm_projector.{n}": x for n, x in self.projector.state_dict().items()}
        tower = {name.removeprefix("vision_model."): x for name, x in self.tower.state_dict().items()}
        if inside:
            state |= {f"model.vision_tower.vision_tower.vision_model.{n}": x for n, x in tower.items()}
        torch.save(state, folder / "pytorch_model.bin")
        self.tower.save_pretrained(folder / "vision_tower")
        if inside:
            (folder / "vision_tower" / "model.safetensors").unlink()
        self.write_processor(folder / "vision_tower")
        config = self.llm.config.to_dict() | self.settings() | {
            "model_type": "llava_llama", "mm_vision_tower": "openai/clip-vit-large-patch14-336",
            "mm_projector_type": self.kind, "tune_mm_mlp_adapter": False, "use_mm_proj": True,
        }  # fmt: skip
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    def write_processor(self, folder):
        size = {"height": self.size, "width": self.size}
        settings = {"image_processor_type": "SiglipImageProcessor", "size": size} if self.siglip else {
            "image_processor_type": "CLIPImageProcessor", "crop_size": self.size, "size": self.size}  # fmt: skip
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))


SHAPES = {
    "VILA-1.5: SigLIP, cells of an odd grid": lambda: Vila(True, "mlp_downsample", size=20, seed=1),
    "SigLIP, cells of an even grid, last layer": lambda: Vila(True, "mlp_downsample", size=16, seed=2, layer=-1),
    "CLIP, MLP": lambda: Vila(False, "mlp2x_gelu", seed=3),
    "CLIP, linear": lambda: Vila(False, "linear", seed=4),
    "CLIP, cells": lambda: Vila(False, "mlp_downsample", seed=5),
    "SigLIP, deep MLP": lambda: Vila(True, "mlp3x_gelu", seed=6),
}
PROMPTS = [([ROWS, 5, 9, 33], [0]), ([7, 8, 9], []), ([4, ROWS, 17, 18, ROWS, ROWS, 20], [1, 2, 0]), ([ROWS, 44], [2])]


def ours(model, prompt, images):
    """A prompt with rows of a table where its images stand."""
    count = len(model.features(images[:1])[0]) if len(images) else 0
    rows = iter(range(60, 60 + count * len(images)))
    ids = [x for t in prompt for x in ([next(rows) for _ in range(count)] if t == ROWS else [t])]
    return {"decoder_prompt_token_ids": ids, "pixel_values": images if len(images) else None}


def check(model, folder, tmp_path):
    engine = build_engine(convert_folder(folder, tmp_path / "checkpoint"), tmp_path / "engine", BuildConfig())
    pipe = Pipeline(engine, RuntimeConfig(device="cpu", max_prefill_tokens=40))
    images = torch.randn(3, 3, model.size, model.size, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(pipe.llm.encoders.networks.encode(images), model.features(images), atol=1e-5, rtol=1e-5)
    inputs = [ours(model, prompt, images[which]) for prompt, which in PROMPTS]
    found = [out.token_ids for out in pipe.generate(inputs, max_new_tokens=12)]
    assert found == [model.continued(prompt, images[which], 12) for prompt, which in PROMPTS]
    assert len({tuple(tokens) for tokens in found}) == len(PROMPTS)
    return pipe


@pytest.mark.parametrize("case", parity({"vila": SHAPES}))
def test_folders_in_parts(case, tmp_path):
    model = case.make()
    pipe = check(model, model.write(tmp_path / "vila"), tmp_path)
    assert pipe.family.name == case.family


def test_the_published_configuration(tmp_path):
    """VILA1.5-3b's, sizes reduced."""
    model = Vila(True, "mlp_downsample", size=20, seed=1)
    folder, published = model.write(tmp_path / "vila"), facts("Efficient-Large-Model__VILA1.5-3b")
    for part in ("llm", "vision_tower", "mm_projector"):
        path, said = folder / part / "config.json", published[f"{part}_cfg"]
        small = {key: value for key, value in json.loads(path.read_text()).items() if isinstance(value, int | dict)}
        sizes = small if part != "mm_projector" else {}
        path.write_text(json.dumps(said | {key: size for key, size in sizes.items() if not isinstance(size, bool)}))
    (folder / "config.json").write_text(json.dumps(published))
    check(model, folder, tmp_path)


@pytest.mark.parametrize("inside", [True, False])
def test_flat_checkpoints(inside, tmp_path):
    model = Vila(False, "mlp2x_gelu", seed=3)
    check(model, model.write_flat(tmp_path / "vila", inside=inside), tmp_path)


def test_pictures_are_pressed_or_padded_into_the_square(tmp_path):
    model = Vila(False, "linear", seed=4)
    wide = Image.new("RGB", (60, 20), (255, 0, 0))
    wide.paste((0, 0, 255), (0, 0, 30, 20))
    for ratio in ("resize", "pad"):
        folder = model.write(tmp_path / ratio)
        config = json.loads((folder / "config.json").read_text()) | {"image_aspect_ratio": ratio}
        (folder / "config.json").write_text(json.dumps(config))
        convert_folder(folder, tmp_path / f"{ratio} checkpoint")
        pixels = ImageProcessor.from_dir(tmp_path / f"{ratio} checkpoint" / "processor", preferring(SIGLIP))([wide])[0]
        assert pixels.shape == (3, 20, 20)
        red, blue = pixels[0], pixels[2]
        assert blue[10, 2] > red[10, 2] and red[10, 17] > blue[10, 17], "both ends are there"
        top = F.mse_loss(pixels[:, 0, 2], pixels[:, 10, 2])
        assert (top > 0.5) == (ratio == "pad"), "a border above"


def test_what_cannot_be_run_is_named(tmp_path, monkeypatch):
    model = Vila(True, "mlp_downsample", seed=1)
    for number, (name, value) in enumerate((("s2", True), ("image_aspect_ratio", "anyres"),
                                            ("mm_vision_select_feature", "patch"), ("mm_vision_select_layer", None),
                                            ("mm_vision_select_layer", [-2, -1]))):  # fmt: skip
        folder = model.write(tmp_path / str(number))
        config = json.loads((folder / "config.json").read_text()) | {name: value}
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(ConfigError, match=name):
            convert_folder(folder, tmp_path / "out")
    for number, part in enumerate((
        ("llm", "model_type", "gemma"), ("mm_projector", "mm_projector_type", None),
        ("vision_tower", "image_size", -20), ("vision_tower", "patch_size", []),
    )):  # fmt: skip
        file = model.write(tmp_path / f"part {number}") / part[0] / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {part[1]: part[2]}))
        with pytest.raises(ConfigError, match=rf"cannot be run exactly: {part[1]} is {re.escape(repr(part[2]))}, "):
            convert_folder(file.parent.parent, tmp_path / "out")
    folder = model.write(tmp_path / "unknown")
    (folder / "mm_projector" / "config.json").write_text('{"mm_projector_type": "resampler"}')
    with pytest.raises(ConfigError, match="mm_projector_type is 'resampler'"):
        convert_folder(folder, tmp_path / "out")
    folder = model.write(tmp_path / "short")
    (folder / "mm_projector" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="holds no weights"):
        convert_folder(folder, tmp_path / "out")
    flat = Vila(False, "linear", seed=4).write_flat(tmp_path / "flat", inside=False)
    for path in (flat / "vision_tower").iterdir():
        path.unlink()
    (flat / "vision_tower").rmdir()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        CheckpointError, match=r"clip-vit-large-patch14-336 .* not in the local cache; put that model's"
    ):
        convert_folder(flat, tmp_path / "out")
