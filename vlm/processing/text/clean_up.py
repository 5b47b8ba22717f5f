"""Blanks before signs and English endings, which some tokenizers' settings take out of decoded texts
(`clean_up_tokenization_spaces`), as Hugging Face does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# in this order, one after the other
REPLACED = {" .": ".", " ?": "?", " !": "!", " ,": ",", " ' ": "'", " n't": "n't", " 'm": "'m", " 's": "'s",
            " 've": "'ve", " 're": "'re"}  # fmt: skip
LONGEST = max(map(len, REPLACED))
FOR_BPE = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"


def is_asked_for(settings: Mapping[str, Any], tokenizer: Tokenizer, *, of_bpe: bool = False) -> bool:
    """Says whether a tokenizer_config.json asks for it. `of_bpe`: where the pieces are those of BPE, too, which Hugging
    Face leaves as they are unless a tokenizer is written in Python."""
    is_bpe = type(tokenizer.model).__name__ == "BPE"
    return bool(settings.get("clean_up_tokenization_spaces")) and (not is_bpe or of_bpe or bool(settings.get(FOR_BPE)))


def clean_up(text: str) -> str:
    for found, replacement in REPLACED.items():
        text = text.replace(found, replacement)
    return text


def settled(text: str) -> str:
    """Returns the beginning of a text of which nothing changes by what may follow, cleaned up or not."""
    end = len(text)
    while (blank := text.find(" ", max(0, end - LONGEST), end)) >= 0:
        end = blank
    return text[:end]
