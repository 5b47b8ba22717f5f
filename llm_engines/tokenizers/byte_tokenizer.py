"""ByT5's tokenizer (Xue et al., arXiv:2105.13626), whose published folders have no file for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vlm.errors import CheckpointError
from vlm.registry.tokenizer_rules import Settings

MOST_EXTRA_IDS = 10_000


def make_tokenizer(folder: Path, settings: Settings) -> dict[str, str] | None:
    """Returns a tokenizer.json; None where the settings name another tokenizer. Raises CheckpointError for a number of
    sentinels that no published one has."""
    if not is_byte_tokenizer(settings):
        return None
    return {"tokenizer.json": byte_tokenizer(_extra_ids(settings.get("extra_ids", 125), folder))}


def is_byte_tokenizer(settings: Settings) -> bool:
    """Says whether a tokenizer_config.json is ByT5's."""
    return str(settings.get("tokenizer_class", "")).removesuffix("Fast") == "ByT5Tokenizer"


def _extra_ids(count: Any, folder: Path) -> int:
    if not isinstance(count, int) or not 0 <= count <= MOST_EXTRA_IDS:
        raise CheckpointError(
            f"{folder / 'tokenizer_config.json'} has extra_ids {str(count)[:40]}; 0 to {MOST_EXTRA_IDS} are allowed."
        )
    return count


def byte_tokenizer(extra_ids: int) -> str:
    """Returns the tokenizer.json of <pad>, </s>, <unk>, the 256 bytes, then sentinels; a text ends in </s>."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    special = ["<pad>", "</s>", "<unk>"]
    signs = [_byte_sign(byte) for byte in range(256)]
    vocabulary = {token: i for i, token in enumerate([*special, *signs])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[], unk_token="<unk>"))
    # in a text they take the blanks beside them away
    tokenizer.add_special_tokens([AddedToken(token, special=True, lstrip=True, rstrip=True) for token in special])
    tokenizer.add_special_tokens([AddedToken(f"<extra_id_{i}>", special=True) for i in range(extra_ids)])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", 1)])
    return tokenizer.to_str()


def _byte_sign(byte: int) -> str:
    """Returns the printable character that byte-level tokenizers write a byte as (Radford et al., GPT-2)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if byte in printable:
        return chr(byte)
    return chr(256 + sum(other not in printable for other in range(byte)))
