"""A tiny family of two tiny networks, for the tests of the artifacts: no real model is needed to convert and build."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from vlm.config import ModelConfig, VisionConfig
from vlm.convert.config_reader import ConfigReader
from vlm.convert.rules import Apply, Drop, Fuse, Rename
from vlm.layers.context import ModelContext
from vlm.registry import catalogs
from vlm.registry.images.processor import ImageProcessorSpec
from vlm.registry.spec import FamilySpec, ModelSpec, Role

WIDTH, VOCAB, ROWS = 4, 11, 6


@dataclass(frozen=True)
class EyeConfig(VisionConfig):
    width: int

    @property
    def num_features(self) -> int:
        return ROWS

    @property
    def hidden_size(self) -> int:
        return self.width


class Eye(nn.Module):
    def __init__(self, config: EyeConfig, context: ModelContext):
        super().__init__()
        self.stem = nn.Linear(config.num_channels, config.width)
        self.register_buffer("rows", torch.arange(ROWS), persistent=False)


class Layer(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.qkv, self.norm = nn.Linear(width, 3 * width), nn.LayerNorm(width)


class Voice(nn.Module):
    def __init__(self, config: ModelConfig, context: ModelContext):
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Layer(config.hidden_size) for _ in range(config.num_layers))


def parse_eye(hf: dict[str, Any]) -> EyeConfig:
    fields = ConfigReader(hf, "eye")
    config = EyeConfig((8, 8), num_channels=fields.get("num_channels", 3), width=fields.get("hidden_size"))
    fields.raise_errors()
    return config


def parse_voice(hf: dict[str, Any]) -> ModelConfig:
    fields = ConfigReader(hf, "voice")
    config = ModelConfig(VOCAB, WIDTH, fields.get("layers", 2), 2, fields.get("max_positions", 16), 0, 2, 1, 0)
    fields.raise_errors()
    return config


def eye_rules(config: EyeConfig) -> list[Any]:
    flip = Apply("stem.kernel", "stem.weight", lambda t: t.flip(0), "channels last to first")
    return [flip, Rename("stem.bias", "stem.bias"), Drop("rows", "computed", optional=True)]


def voice_rules(config: ModelConfig) -> list[Any]:
    found: list[Any] = [
        Rename("embed.weight", "embedding.weight"),
        Drop("head.weight", "tied", same_as="embed.weight", optional=True),
    ]
    for kind in ("weight", "bias"):
        found.append(Fuse(f"layers.{{}}.{{q,k,v}}.{kind}", f"blocks.{{}}.qkv.{kind}"))
        found.append(Rename(f"layers.{{}}.norm.{kind}", f"blocks.{{}}.norm.{kind}"))
    return found


EYE = ModelSpec("eye", EyeConfig, parse_eye, Eye, eye_rules)
VOICE = ModelSpec("voice", ModelConfig, parse_voice, Voice, voice_rules)
CONFIG = {
    "model_type": "toy",
    "encoder": {"model_type": "eye", "hidden_size": WIDTH},
    "decoder": {"model_type": "voice", "layers": 2, "eos_token_id": 2, "num_beams": 3},
    "pad_token_id": 1,
}
# what a folder of this configuration says about generation: it names no token to start with
GENERATION = {"eos_token_id": 2, "num_beams": 3, "pad_token_id": 1, "decoder_start_token_id": None}
TOY = FamilySpec(
    name="toy",
    summary="an eye and a voice",
    roles={"visual": Role("eye", "encoder", "encoder."), "decoder": Role("voice", "decoder", "decoder.")},
    matches=lambda hf: hf.get("model_type") == "toy",
    inputs=("image",),
    image_processors=(ImageProcessorSpec("ViTImageProcessor"),),
    architectures={"toy-base": lambda: CONFIG},
)


@dataclass(frozen=True)
class Direct:
    """A catalog's ModelRef whose spec is at hand."""

    spec: ModelSpec

    @property
    def name(self) -> str:
        return self.spec.name

    def load(self) -> ModelSpec:
        return self.spec


class Catalog:
    MODELS = (Direct(EYE), Direct(VOICE))
    FAMILIES = (TOY,)


def install(monkeypatch: Any) -> None:
    """Puts the toy catalog in the place of the installed ones."""
    monkeypatch.setattr(catalogs, "installed", lambda: (Catalog,))
    catalogs.model_spec.cache_clear()


def hf_tensors(layers: int = 2) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    draw = lambda *shape: torch.randn(shape, generator=generator)  # noqa: E731
    tensors = {
        "encoder.stem.kernel": draw(WIDTH, 3),
        "encoder.stem.bias": draw(WIDTH),
        "encoder.rows": torch.arange(ROWS),
    }
    tensors["decoder.embed.weight"] = draw(VOCAB, WIDTH)
    for i in range(layers):
        for part in "qkv":
            tensors[f"decoder.layers.{i}.{part}.weight"] = draw(WIDTH, WIDTH)
            tensors[f"decoder.layers.{i}.{part}.bias"] = draw(WIDTH)
        tensors[f"decoder.layers.{i}.norm.weight"] = draw(WIDTH)
        tensors[f"decoder.layers.{i}.norm.bias"] = draw(WIDTH)
    return tensors


def write_hf(path: Path, tensors: dict[str, Tensor] | None = None, config: dict[str, Any] | None = None) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config or CONFIG))
    (path / "tokenizer.json").write_text('{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}')
    (path / "README.md").write_text("not copied")
    save_file(hf_tensors() if tensors is None else tensors, path / "model.safetensors")
    return path


def contents(path: Path) -> dict[str, bytes]:
    """Relative path -> bytes of every file below."""
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}
