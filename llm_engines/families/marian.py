"""Marian's models of OPUS-MT, for one pair of languages or several targets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_engines.families.bart import ROLES, bart_shape
from llm_engines.tokenizers.piece_vocabulary import dictionary_of, target_tokenizer, vocabulary_tokenizer
from llm_engines.tokenizers.vocabulary_file import existing, read_vocabulary
from vlm.registry.spec import FamilySpec
from vlm.registry.tokenizer_rules import Languages, Settings, TokenizerRules, language_pair

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIAL = ("</s>", "<unk>", "<pad>")
AFFIXES = (">>", "<<")
CODE = re.compile(r">>(.+)<<")  # of a target's language, at the beginning of a text


def make_tokenizer(folder: Path, settings: Settings) -> dict[str, str] | None:
    """Returns the tokenizer of a vocabulary and the source's SentencePiece model, and what reads outputs where these
    have a vocabulary of their own; None for a folder without any of them."""
    paths = [folder / name for name in ("source.spm", "target.spm", "vocab.json")]
    if not (there := [path.name for path in paths if path.is_file()]):
        return None
    pieces, _, vocabulary = (existing(path, f"a {there[0]}") for path in paths)
    entries = read_vocabulary(vocabulary, SPECIAL)
    special = [*SPECIAL, *filter(CODE.fullmatch, entries)]
    files = {"tokenizer.json": vocabulary_tokenizer(pieces, entries, special)}
    if settings.get("separate_vocabs"):
        target = existing(folder / "target_vocab.json", "separate_vocabs in its tokenizer_config.json")
        files["tokenizer_target.json"] = target_tokenizer(read_vocabulary(target, SPECIAL), SPECIAL)
    return files


def tokenizer_rules(tokenizer: Tokenizer, settings: Settings) -> TokenizerRules:
    """Returns the languages of a model of several targets, or the pair of another, and where the vocabulary ends."""
    end, dictionary = tokenizer.token_to_id("</s>"), dictionary_of(tokenizer)
    tokens = {token.content: i for i, token in tokenizer.get_added_tokens_decoder().items()}
    codes = {match[1]: i for token, i in tokens.items() if (match := CODE.fullmatch(token))}
    if end is None or not codes:
        return TokenizerRules(pair=language_pair(settings), dictionary=dictionary, cleans_up_bpe=True)
    languages = Languages(codes, end, source_first=True, starts_output=False, target_in_text=True, affixes=AFFIXES)
    return TokenizerRules(languages, dictionary=dictionary, cleans_up_bpe=True)


def _opus_mt(vocab_size: int) -> dict[str, Any]:
    """Returns the published shapes of Helsinki-NLP/opus-mt-*."""
    pad = vocab_size - 1
    shape = bart_shape("marian", vocab_size, width=512, layers=6, activation_function="swish", scale_embedding=True)
    special = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": pad, "decoder_start_token_id": pad}
    return shape | special | {"max_position_embeddings": 512, "forced_eos_token_id": 0, "bad_words_ids": [[pad]]}


MARIAN = FamilySpec(
    name="marian",
    summary="Translation, a pair of languages or several targets: Marian, OPUS-MT (Helsinki-NLP/opus-mt-*)",
    roles=ROLES,
    matches=lambda config: config.get("model_type") == "marian" and bool(config.get("is_encoder_decoder", True)),
    inputs=("text",),
    tokenizer_rules=tokenizer_rules,
    make_tokenizer=make_tokenizer,
    tokenizer_files=("source.spm", "target.spm", "target_vocab.json"),
    base_prefixes=("model.",),
    architectures={"opus-mt-de-en": lambda: _opus_mt(58101)},
)
