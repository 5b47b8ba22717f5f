"""Nougat: pages of documents to markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from visual_engines.answers.nougat_markdown import to_markdown
from visual_engines.images.nougat_images import NOUGAT_IMAGES
from vlm.registry.spec import FamilySpec, Role

ENCODER = {
    "model_type": "donut-swin",
    "image_size": [896, 672],
    "patch_size": 4,
    "num_channels": 3,
    "embed_dim": 128,
    "depths": [2, 2, 14, 2],
    "num_heads": [4, 8, 16, 32],
    "window_size": 7,
    "mlp_ratio": 4.0,
    "qkv_bias": True,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
}
TOKENS = {"decoder_start_token_id": 0, "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}


def is_swin_and_mbart(config: Mapping[str, Any]) -> bool:
    """Says whether the networks are those of Nougat, and of others."""
    parts = [config.get(part) or {} for part in ("encoder", "decoder")]
    types = [part.get("model_type") if isinstance(part, dict) else None for part in parts]
    return config.get("model_type") in ("vision-encoder-decoder", "nougat") and types == ["donut-swin", "mbart"]


def decoder_shape(layers: int, max_positions: int) -> dict[str, Any]:
    """Returns the published shape of a decoder, but for the sizes that differ."""
    return {
        "model_type": "mbart",
        "is_decoder": True,
        "add_cross_attention": True,
        "is_encoder_decoder": False,
        "vocab_size": 50000,
        "d_model": 1024,
        "decoder_layers": layers,
        "encoder_layers": layers,
        "decoder_attention_heads": 16,
        "decoder_ffn_dim": 4096,
        "max_position_embeddings": max_positions,
        "activation_function": "gelu",
        "scale_embedding": True,
        "add_final_layer_norm": True,
        "tie_word_embeddings": True,
        **TOKENS,
    }


def _nougat(decoder_layers: int, max_positions: int) -> dict[str, Any]:
    """Returns the published shapes of facebook/nougat-*, which share their encoder."""
    return {
        "model_type": "vision-encoder-decoder",
        **TOKENS,
        "tie_word_embeddings": False,
        "encoder": dict(ENCODER),
        "decoder": decoder_shape(decoder_layers, max_positions),
    }


NOUGAT = FamilySpec(
    name="nougat",
    summary="Document pages to markdown: Swin encoder, mBART decoder (facebook/nougat-*)",
    roles={
        "visual": Role("donut-swin", config_key="encoder", weight_prefix="encoder."),
        "decoder": Role("bart", config_key="decoder", weight_prefix="decoder."),
    },
    matches=is_swin_and_mbart,
    inputs=("image",),
    image_processors=(NOUGAT_IMAGES,),
    postprocess=to_markdown,
    loop_detection=True,
    architectures={
        "nougat-base": lambda: _nougat(decoder_layers=10, max_positions=4096),
        "nougat-small": lambda: _nougat(decoder_layers=4, max_positions=3584),
    },
)
