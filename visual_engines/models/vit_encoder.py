"""ViT and DeiT as encoders of their own: TrOCR's decoder attends to all of their rows."""

from __future__ import annotations

from typing import Any

from visual_engines.models import vit
from vlm.convert.rules import Apply, Drop, Fuse, Rename
from vlm.registry.spec import ModelSpec

# a layer's parts, and its attention's, by the names of transformers' releases before 5 and since
LAYERS = {
    "encoder.layer.{}": {
        "attention.output.dense": "attention.proj",
        "intermediate.dense": "mlp.fc1",
        "output.dense": "mlp.fc2",
    },
    "layers.{}": {"attention.o_proj": "attention.proj", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"},
}
QKV = {"encoder.layer.{}": "attention.attention.{query,key,value}", "layers.{}": "attention.{q,k,v}_proj"}
NORMS = {"layernorm_before": "norm1", "layernorm_after": "norm2"}


def parse(hf: dict[str, Any]) -> vit.ViTConfig:
    """Reads a Hugging Face `vit` or `deit` configuration. Raises ConfigError that names every field it cannot
    honour."""
    return vit.parse(hf, kinds=vit.ENCODERS)


def rules(config: vit.ViTConfig) -> list[Any]:
    """Returns weight rules of `ViTModel` and `DeiTModel` (names without the role's prefix)."""
    theirs = {"class_token": "cls_token", "distillation_token": "distillation_token"}
    one = "saved as of one image"
    weight_rules: list[Any] = [
        *(Apply(f"embeddings.{theirs[name]}", name, lambda x: x[0, 0], one) for name in config.tokens),
        Apply("embeddings.position_embeddings", "positions", lambda x: x[0], one),
        Drop("embeddings.mask_token", "of the training", optional=True),
    ]
    for kind in ("weight", "bias"):
        weight_rules += [
            Rename(f"embeddings.patch_embeddings.projection.{kind}", f"patch_embed.proj.{kind}"),
            Rename(f"layernorm.{kind}", f"final_norm.{kind}"),
            Drop(f"pooler.dense.{kind}", "a decoder attends to all rows", optional=True),
        ]
    return [*weight_rules, *(rule for layer in LAYERS for rule in _layer_rules(layer, config))]


def _layer_rules(layer: str, config: vit.ViTConfig) -> list[Any]:
    """Returns the rules of one release's names, of which a file has one or the other."""
    names = {f"{layer}.{a}": f"blocks.{{}}.{b}" for a, b in (NORMS | LAYERS[layer]).items()}
    weight_rules: list[Any] = [
        Rename(f"{a}.{kind}", f"{b}.{kind}", optional=True) for a, b in names.items() for kind in ("weight", "bias")
    ]
    for kind in ("weight", "bias") if config.qkv_bias else ("weight",):
        source = f"{layer}.{QKV[layer]}.{kind}"
        weight_rules.append(Fuse(source, f"blocks.{{}}.attention.qkv.{kind}", optional=True))
    return weight_rules


SPEC = ModelSpec("vit", vit.ViTConfig, parse, vit.ViT, rules)
