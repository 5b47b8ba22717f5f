"""TrOCR: lines of text, printed or written by hand."""

from __future__ import annotations

from typing import Any

from visual_engines.images.image_processors import DEIT, VIT
from vlm.registry.spec import FamilySpec, Role

ENCODERS = ("vit", "deit")
TOKENS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
# decoders as FairSeq's, of trocr-base-stage1 and trocr-large-printed; all others are RoBERTa's
COMPUTED = {
    "activation_function": "relu",
    "layernorm_embedding": False,
    "max_position_embeddings": 1024,
    "scale_embedding": True,
    "tie_word_embeddings": False,
    "use_learned_position_embeddings": False,
}
SMALL = {
    "activation_function": "relu",
    "d_model": 256,
    "decoder_attention_heads": 8,
    "decoder_ffn_dim": 1024,
    "decoder_layers": 6,
    "scale_embedding": True,
    "vocab_size": 64044,
}


def _is_trocr(config: dict[str, Any]) -> bool:
    parts = [config.get(part) or {} for part in ("encoder", "decoder")]
    encoder, decoder = (part.get("model_type") if isinstance(part, dict) else None for part in parts)
    return config.get("model_type") == "vision-encoder-decoder" and encoder in ENCODERS and decoder == "trocr"


def _encoder(kind: str, width: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "model_type": kind,
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "image_size": 384,
        "patch_size": 16,
        "qkv_bias": kind == "deit",
    }


def _trocr(encoder: dict[str, Any], **decoder: Any) -> dict[str, Any]:
    """Returns the published shapes of microsoft/trocr-*."""
    base = {
        "model_type": "trocr",
        "is_decoder": True,
        "add_cross_attention": True,
        "vocab_size": 50265,
        "d_model": 1024,
        "decoder_layers": 12,
        "decoder_attention_heads": 16,
        "decoder_ffn_dim": 4096,
        "max_position_embeddings": 512,
        "activation_function": "gelu",
        "cross_attention_hidden_size": encoder["hidden_size"],
        **TOKENS,
    }
    return {
        "model_type": "vision-encoder-decoder",
        "tie_word_embeddings": False,
        "encoder": encoder,
        "decoder": base | decoder,
        **TOKENS,
    }


TROCR = FamilySpec(
    name="trocr",
    summary="Images of one line of text to text: ViT or DeiT encoder, TrOCR decoder (microsoft/trocr-*)",
    roles={
        "visual": Role("vit", config_key="encoder", weight_prefix="encoder."),
        "decoder": Role("bart", config_key="decoder", weight_prefix="decoder."),
    },
    matches=_is_trocr,
    inputs=("image",),
    image_processors=(VIT, DEIT),
    architectures={
        "trocr-small": lambda: _trocr(_encoder("deit", 384, 12, 6), **SMALL),
        "trocr-base": lambda: _trocr(_encoder("vit", 768, 12, 12)),
        "trocr-base-stage1": lambda: _trocr(_encoder("vit", 768, 12, 12), **COMPUTED),
        "trocr-large": lambda: _trocr(_encoder("vit", 1024, 24, 16)),
        "trocr-large-printed": lambda: _trocr(_encoder("vit", 1024, 24, 16), **COMPUTED),
    },
)
