"""T5, T5 v1.1, Flan-T5, mT5, UMT5, ByT5, UL2, MADLAD-400, and their encoders alone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from llm_engines.tokenizers.byte_tokenizer import is_byte_tokenizer, make_tokenizer
from vlm.registry.spec import FamilySpec, Role
from vlm.registry.tokenizer_rules import Languages, Settings, TokenizerRules

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def _t5(d_model: int, d_ff: int, layers: int, heads: int, v1_1: bool) -> dict[str, Any]:
    """Returns the published shapes of google-t5/t5-* and google/flan-t5-*."""
    return {
        "model_type": "t5",
        "is_encoder_decoder": True,
        "vocab_size": 32128,
        "d_model": d_model,
        "d_kv": 64,
        "d_ff": d_ff,
        "num_layers": layers,
        "num_decoder_layers": layers,
        "num_heads": heads,
        "feed_forward_proj": "gated-gelu" if v1_1 else "relu",
        "tie_word_embeddings": not v1_1,
        "n_positions": 512,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }


def _madlad_3b() -> dict[str, Any]:
    """Returns the shapes of google/madlad400-3b-mt, whose heads together are wider than a row."""
    return _t5(1024, 8192, 32, 16, v1_1=True) | {"vocab_size": 256000, "d_kv": 128}


def _is_t5_encoder(config: dict[str, Any]) -> bool:
    """Says whether the architectures name the encoder of a T5, and no other class."""
    if config.get("model_type") not in TYPES or not isinstance(names := config.get("architectures"), list):
        return False
    return bool(names) and all(name in ("T5EncoderModel", "MT5EncoderModel", "UMT5EncoderModel") for name in names)


def _is_t5(config: dict[str, Any]) -> bool:
    """Says whether it is an encoder-decoder as a whole: a decoder alone is a part of something else."""
    return config.get("model_type") in TYPES and bool(config.get("is_encoder_decoder", True))


TYPES = ("t5", "mt5", "umt5")
MADLAD = re.compile(r"<2(\w+)>")  # MADLAD-400's token of a target's language


def tokenizer_rules(tokenizer: Tokenizer, settings: Settings) -> TokenizerRules:
    """Returns the languages that MADLAD-400 is told before a text, other T5s are told in words; and what Hugging Face's
    class of ByT5 makes of texts."""
    end = tokenizer.token_to_id("</s>")
    if end is None or tokenizer.token_to_id("<2en>") is None:
        return byte_rules(tokenizer, settings)
    codes = {match[1]: i for token, i in tokenizer.get_vocab().items() if (match := MADLAD.fullmatch(token))}
    languages = Languages(codes, end, source_first=True, starts_output=False, target_in_text=True, affixes=("<2", ">"))
    return TokenizerRules(languages)


def byte_rules(tokenizer: Tokenizer, settings: Settings) -> TokenizerRules:
    """Returns what Hugging Face's class of ByT5 makes of texts, where it is that."""
    of_bytes = is_byte_tokenizer(settings)
    return TokenizerRules(cleans_up_bpe=of_bytes, drops_half_characters=of_bytes, ends_once=of_bytes)


T5_ENCODER = FamilySpec(
    name="t5-encoder",
    summary="Text to hidden states: encoders of T5, T5 v1.1, mT5, UMT5 saved alone (T5EncoderModel)",
    roles={
        "encoder": Role("t5-encoder", weight_prefix="encoder.", shared_tensors=("shared.weight",), hf_runs="unpacked")
    },
    matches=_is_t5_encoder,
    inputs=("text",),
    tokenizer_rules=byte_rules,
    make_tokenizer=make_tokenizer,
)


T5 = FamilySpec(
    name="t5",
    summary="Text to text: T5, T5 v1.1, Flan-T5, mT5, UMT5, ByT5, UL2, MADLAD-400 (google-t5/t5-*, …)",
    roles={
        "encoder": Role(
            "t5-encoder",
            weight_prefix="encoder.",
            shared_tensors=("shared.weight", "decoder.embed_tokens.weight", "lm_head.weight"),
        ),
        "decoder": Role("t5", shared_tensors=("encoder.embed_tokens.weight",), hf_runs="unpacked"),
    },
    matches=_is_t5,
    inputs=("text",),
    tokenizer_rules=tokenizer_rules,
    make_tokenizer=make_tokenizer,
    architectures={
        "t5-small": lambda: _t5(512, 2048, 6, 8, v1_1=False),
        "t5-base": lambda: _t5(768, 3072, 12, 12, v1_1=False),
        "t5-3b": lambda: _t5(1024, 16384, 24, 32, v1_1=False) | {"d_kv": 128},
        "flan-t5-base": lambda: _t5(768, 2048, 12, 12, v1_1=True),
        "flan-t5-large": lambda: _t5(1024, 2816, 24, 16, v1_1=True),
        "flan-t5-xl": lambda: _t5(2048, 5120, 24, 32, v1_1=True),
        "flan-t5-xxl": lambda: _t5(4096, 10240, 24, 64, v1_1=True),
        "madlad400-3b": _madlad_3b,
    },
)
