"""What folders of small models have in common: a tokenizer of few words, and the publication's generation settings."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers


def tokenizer_of_words(words: list[str], special: list[str]) -> Tokenizer:
    """Returns a tokenizer of whole lines, and of special tokens wherever they stand."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate([*words, *special])}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("\n", "isolated")
    tokenizer.add_special_tokens(special)
    return tokenizer


def copy_generation_config(published: Path, folder: Path, **changes) -> None:
    """Writes a publication's generation_config.json with these changes."""
    settings = json.loads((published / "generation_config.json").read_text()) | changes
    (folder / "generation_config.json").write_text(json.dumps(settings))
