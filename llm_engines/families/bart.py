"""BART, mBART and mBART-50."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vlm.registry.spec import FamilySpec, Role
from vlm.registry.tokenizer_rules import Languages, Settings, TokenizerRules

if TYPE_CHECKING:
    from tokenizers import Tokenizer


# tokenizer class -> does the code of the source's language stand first, or behind the end?
SOURCE_FIRST = {"MBartTokenizer": False, "MBart50Tokenizer": True}


def tokenizer_rules(tokenizer: Tokenizer, settings: Settings) -> TokenizerRules:
    """Returns mBART's languages: mBART-50 begins its output with the code of the target's language, mBART starts from
    it."""
    source_first = SOURCE_FIRST.get(str(settings.get("tokenizer_class")).removesuffix("Fast"))
    if source_first is None or (end := tokenizer.token_to_id("</s>")) is None:
        return TokenizerRules()
    tokens = tokenizer.get_added_tokens_decoder()
    if not (codes := {token.content: i for i, token in tokens.items() if _is_code(token.content)}):
        return TokenizerRules()  # a class by the model's type, another tokenizer by its file
    default = settings.get("src_lang")
    return TokenizerRules(Languages(codes, end, source_first, starts_output=not source_first, default=default))


def _is_code(token: str) -> bool:
    language, _, region = token.partition("_")
    return language.isalpha() and language.islower() and region.isalpha() and region.isupper()


def bart_shape(
    model_type: str, vocab_size: int, *, width: int = 1024, layers: int = 12, **fields: Any
) -> dict[str, Any]:
    """Returns a configuration of heads of 64 and feed-forward layers of four times the width, as published."""
    sides = {f"{side}_{name}": n for side in ("encoder", "decoder")
             for name, n in (("layers", layers), ("ffn_dim", 4 * width), ("attention_heads", width // 64))}  # fmt: skip
    return sides | {
        "model_type": model_type,
        "is_encoder_decoder": True,
        "vocab_size": vocab_size,
        "d_model": width,
        "max_position_embeddings": 1024,
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
        **fields,
    }


def _is_bart(config: dict[str, Any]) -> bool:
    """Says whether it is an encoder-decoder as a whole: a decoder alone is a part of something else."""
    return config.get("model_type") in ("bart", "mbart") and bool(config.get("is_encoder_decoder", True))


ROLES = {
    "encoder": Role(
        "bart-encoder",
        weight_prefix="model.encoder.",
        shared_tensors=("model.shared.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"),
    ),
    "decoder": Role("bart", shared_tensors=("model.encoder.embed_tokens.weight",), hf_runs="none"),
}

BART = FamilySpec(
    name="bart",
    summary="Text to text: BART, mBART, mBART-50 (facebook/bart-*, facebook/mbart-large-*)",
    roles=ROLES,
    matches=_is_bart,
    inputs=("text",),
    tokenizer_rules=tokenizer_rules,
    base_prefixes=("model.",),
    architectures={
        "bart-large-cnn": lambda: bart_shape("bart", 50264, forced_eos_token_id=2),
        "mbart-large-50": lambda: bart_shape("mbart", 250054, scale_embedding=True, forced_eos_token_id=2),
    },
)
