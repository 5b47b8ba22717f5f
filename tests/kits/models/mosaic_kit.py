"""A visual network that takes images of several sizes, and two families of it: in prompts, as LLaVA has it, and under a
decoder that attends to its rows, as Nougat has it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from visual_engines.images.image_processors import CLIP
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.config import VisionConfig
from vlm.convert.config_reader import ConfigReader
from vlm.convert.folder import convert_folder
from vlm.convert.rules import Rename
from vlm.layers.context import ModelContext
from vlm.registry import catalogs
from vlm.registry.spec import ChatFormat, FamilySpec, ModelRef, ModelSpec, Role

PATCH, LARGEST = 4, 16


@dataclass(frozen=True)
class MosaicConfig(VisionConfig):
    """A row a patch, of images whose sides are multiples of a patch's."""

    width: int

    @property
    def hidden_size(self) -> int:
        return self.width

    @property
    def num_features(self) -> int:
        return self.rows_of(*self.image_size)

    @property
    def min_rows(self) -> int:
        return 1

    @property
    def fixed_size(self) -> bool:
        return False

    @property
    def shapes(self) -> str:
        return f"({self.num_channels}, height, width), both multiples of {PATCH} up to {LARGEST}"

    def takes(self, height: int, width: int) -> bool:
        return all(0 < side <= LARGEST and side % PATCH == 0 for side in (height, width))

    def rows_of(self, height: int, width: int) -> int:
        return height // PATCH * (width // PATCH)

    def grid_of(self, height: int, width: int) -> tuple[int, int]:
        return height // PATCH, width // PATCH


class Mosaic(nn.Module):
    """Each row knows its patch, its place, and all other patches."""

    def __init__(self, config: MosaicConfig, context: ModelContext):
        super().__init__()
        self.config = config
        self.patches = nn.Conv2d(config.num_channels, config.width, PATCH, PATCH)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """[n, C, H, W] -> [n, rows, width]"""
        x = self.patches(pixel_values)
        rows, columns = x.shape[2:]
        place = torch.arange(rows)[:, None] * 0.7 + torch.arange(columns) * 0.3
        x = x + place.sin() + x.mean((2, 3), keepdim=True)
        return x.flatten(2).transpose(1, 2)


def parse(hf: dict[str, Any]) -> MosaicConfig:
    return MosaicConfig((LARGEST, LARGEST), 3, width=ConfigReader(hf, "mosaic").get("width"))


def rules(config: MosaicConfig) -> list[Any]:
    return [Rename(f"patches.{kind}", f"patches.{kind}") for kind in ("weight", "bias")]


SPEC = ModelSpec("mosaic", MosaicConfig, parse, Mosaic, rules)
VISUAL = Role("mosaic", "mosaic", "mosaic.")


class Catalog:
    MODELS = (ModelRef("mosaic", "tests.kits.models.mosaic_kit:SPEC"),)
    FAMILIES = (
        FamilySpec(
            name="mosaic-chat",
            summary="a mosaic in a prompt",
            roles={"visual": VISUAL, "decoder": Role("llama", "text_config", "language_model.")},
            matches=lambda hf: hf.get("model_type") == "mosaic-chat",
            inputs=("image", "text"),
            chat_format=ChatFormat(),
            image_processors=(CLIP,),
            renames={"model.language_model.": "language_model.model.", "lm_head.": "language_model.lm_head."},
        ),
        FamilySpec(
            name="mosaic-page",
            summary="a mosaic that a decoder attends to",
            roles={"visual": VISUAL, "decoder": Role("bart", "decoder", "decoder.")},
            matches=lambda hf: hf.get("model_type") == "mosaic-page",
            inputs=("image",),
            image_processors=(CLIP,),
        ),
    )


def install(monkeypatch: Any) -> None:
    """Adds the families to the installed ones."""
    installed = catalogs.installed()
    monkeypatch.setattr(catalogs, "installed", lambda: (*installed, Catalog))


def converted(folder: Path, kind: str, theirs: tuple[str, ...]) -> Checkpoint:
    """A saved Hugging Face model whose visual part (tensors named `theirs`…) gives way to a random mosaic."""
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config") or config["decoder"]
    width = text.get("hidden_size") or text["d_model"]
    config |= {"model_type": kind, "architectures": None, "mosaic": {"width": width}}
    (folder / "config.json").write_text(json.dumps(config))
    kept = {name: x for name, x in load_file(folder / "model.safetensors").items() if not name.startswith(theirs)}
    drawn = torch.Generator().manual_seed(5)
    weight = torch.randn(width, 3, PATCH, PATCH, generator=drawn) * 0.3
    mosaic = {"mosaic.patches.weight": weight, "mosaic.patches.bias": torch.randn(width, generator=drawn)}
    save_file({**kept, **mosaic}, folder / "model.safetensors")
    return convert_folder(folder, folder.parent / "checkpoint")


def pictures(*sizes: tuple[int, int], seed: int = 0) -> list[Tensor]:
    """[3, height, width] each"""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(3, *size, generator=generator) for size in sizes]
