"""What a Florence-2's visual encoder is, of a config.json of transformers' class or of Microsoft's own code."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from visual_engines.families.florence2_layout import is_remote
from visual_engines.layers import ACTIVATIONS
from vlm.config import VisionConfig
from vlm.convert.config_reader import ConfigReader, token_id
from vlm.errors import cut, shown

PUBLISHED_SIZE = (768, 768)  # of images: the processor's, no config.json says it
# what both read; the class's defaults are base's shapes, Microsoft's are large's
COMMON = {"patch_size": (7, 3, 3, 3), "patch_stride": (4, 2, 2, 2), "patch_padding": (3, 1, 1, 1),
          "patch_prenorm": (False, True, True, True), "depths": (1, 1, 9, 1)}  # fmt: skip
DEFAULTS = {
    "florence_vision": {"embed_dim": (128, 256, 512, 1024), "num_heads": (4, 8, 16, 32), "num_groups": (4, 8, 16, 32)},
    "davit": {"embed_dim": (256, 512, 1024, 2048), "num_heads": (8, 16, 32, 64), "num_groups": (8, 16, 32, 64)},
}


@dataclass(frozen=True)
class FlorenceVisionConfig(VisionConfig):
    embed_dim: tuple[int, ...]  # of each stage, as the seven that follow
    depths: tuple[int, ...]
    num_heads: tuple[int, ...]
    num_groups: tuple[int, ...]
    patch_size: tuple[int, ...]
    patch_stride: tuple[int, ...]
    patch_padding: tuple[int, ...]
    patch_prenorm: tuple[bool, ...]
    window_size: int
    projection_dim: int
    max_positions: int  # rows and columns of the last stage's grid
    mlp_ratio: float = 4.0
    qkv_bias: bool = True
    activation: str = "gelu"
    image_token_id: int | None = None

    @property
    def grids(self) -> list[tuple[int, int]]:
        """Returns (rows, columns) of each stage."""
        grids, (height, width) = [], self.image_size
        for size, stride, padding in zip(self.patch_size, self.patch_stride, self.patch_padding, strict=True):
            height, width = ((side + 2 * padding - size) // stride + 1 for side in (height, width))
            grids.append((height, width))
        return grids

    @property
    def num_features(self) -> int:
        """A row a cell, and before them their mean."""
        return 1 + math.prod(self.grids[-1])

    @property
    def hidden_size(self) -> int:
        return self.projection_dim


def parse(hf: dict[str, Any]) -> FlorenceVisionConfig:
    """Reads a whole `florence2` configuration, transformers' or Microsoft's own. Raises ConfigError that names every
    field it cannot honour."""
    vision, text = hf.get("vision_config") or {}, hf.get("text_config") or {}
    remote = is_remote(hf)
    fields = ConfigReader(_as_class_names(vision) if remote else vision, "Florence-2")
    for name, allowed in (("image_feature_source", _SOURCES), (_TYPES, _EMBEDDINGS)) if remote else ():
        fields.choice(name, [allowed], default=allowed)
    config = FlorenceVisionConfig(
        image_size=_image_size(hf.get("image_processor_size")),
        num_channels=fields.size("in_channels", 3),
        **{name: tuple(fields.get(name, default)) for name, default in _by_stage(remote).items()},
        window_size=fields.size("window_size", 12),
        projection_dim=fields.size("projection_dim", 1024),
        max_positions=fields.size("max_position_embeddings", 50),
        mlp_ratio=fields.get("mlp_ratio", 4.0),
        qkv_bias=bool(fields.get("qkv_bias", True)),
        activation=fields.choice("activation_function", ACTIVATIONS, default="gelu"),
        image_token_id=None if remote else token_id(hf, "image_token_id", 51289),
    )
    fields.errors += _contradictions(config, text.get("d_model", 1024))
    fields.raise_errors()
    return config


_SOURCES = ["spatial_avg_pool", "temporal_avg_pool"]
_TYPES, _EMBEDDINGS = "visual_temporal_embedding.type and image_pos_embed.type", ["COSINE", "learned_abs_2d"]


def _as_class_names(vision: Mapping[str, Any]) -> dict[str, Any]:
    """Returns Microsoft's keys under the names of transformers' class, which lack nothing but the choices that it
    makes."""
    time, place = vision.get("visual_temporal_embedding") or {}, vision.get("image_pos_embed") or {}
    named = {"embed_dim": vision.get("dim_embed"), "max_position_embeddings": place.get("max_pos_embeddings")}
    said = {key: value for key, value in {**vision, **named}.items() if value is not None}
    return said | {_TYPES: [time.get("type"), place.get("type")]}


def _by_stage(remote: bool) -> dict[str, tuple[Any, ...]]:
    return COMMON | DEFAULTS["davit" if remote else "florence_vision"]


def _image_size(size: Any) -> tuple[int, int]:
    """Returns the (height, width) that a processor's settings scale images to, or the published one."""
    named = [size.get(side) for side in ("height", "width")] if isinstance(size, Mapping) else size
    sides = named if isinstance(named, list) else [named, named]
    whole = [side for side in sides if isinstance(side, int)]
    return (whole[0], whole[1]) if len(whole) == 2 else PUBLISHED_SIZE


def _contradictions(config: FlorenceVisionConfig, text_width: int) -> list[str]:
    stages = {name: getattr(config, name) for name in _by_stage(remote=False)}
    if wrong := [name for name, values in stages.items() if len(values) != len(config.embed_dim)]:
        return [f"{name} has {len(stages[name])} stages, embed_dim {len(config.embed_dim)}" for name in wrong]
    errors = []
    for name, counts in (("num_heads", config.num_heads), ("num_groups", config.num_groups)):
        uneven = [pair for pair in zip(config.embed_dim, counts, strict=True) if pair[0] % pair[1]]
        errors += [f"embed_dim {width} is no multiple of {name} {count}" for width, count in uneven]
    if not 0 < min(config.grids[-1]) <= max(config.grids[-1]) <= config.max_positions:
        errors.append(
            f"images of {shown(config.image_size)} become {shown(config.grids[-1])} cells, not 1 to"
            f" {config.max_positions}"
        )
    furthest = max(config.window_size, *config.patch_stride, *config.patch_padding)
    if min(config.patch_padding) < 0 or furthest > max(config.image_size):
        errors.append(
            f"patch_padding is {shown(config.patch_padding)}, patch_stride {shown(config.patch_stride)}, window_size"
            f" {cut(config.window_size)}: no images have those"
        )
    if config.projection_dim != text_width:
        errors.append(f"projection_dim is {config.projection_dim}, the language model's width is {text_width}")
    return errors
