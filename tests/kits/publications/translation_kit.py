"""Folders of models that translate, with their tokenizers' files as they are published."""

from __future__ import annotations

import json
from pathlib import Path

from tests.kits.publications.nemo_kit import sentencepiece_file

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
TARGET_PIECES = ["▁das", "▁Haus", "▁ist", "▁klein", "日", "日本", "ö"]


def pieces_of(path: Path) -> list[str]:
    """Returns a SentencePiece model's pieces, but for its special ones."""
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [model.id_to_piece(i) for i in range(3, model.vocab_size())]


def m2m100_files(folder: Path, kind: str = "bpe", **settings) -> None:
    """Writes a vocabulary without languages, in an order of its own."""
    made = sentencepiece_file(folder, kind, "sentencepiece.bpe")
    entries = [*SPECIAL, *sorted(pieces_of(made))[2:]]
    (folder / "vocab.json").write_text(json.dumps({entry: i for i, entry in enumerate(entries)}))
    _settings(folder, tokenizer_class="M2M100Tokenizer", **settings)


def marian_files(folder: Path, codes: tuple[str, ...] = (), kind: str = "unigram", separate: bool = False) -> None:
    """Writes a vocabulary of both languages, which lacks a piece of the source's, or one of each."""
    folder.mkdir(exist_ok=True)
    made = sentencepiece_file(folder, kind, "source")
    made.rename(folder / "source.spm")
    sentencepiece_file(folder, kind, "target", vocab_size=50).rename(folder / "target.spm")
    source = [piece for piece in sorted(pieces_of(folder / "source.spm")) if piece != "▁boat"]
    entries = ["</s>", "<unk>", *(f">>{code}<<" for code in codes), *source, *TARGET_PIECES, "<pad>"]
    _write(folder / "vocab.json", entries)
    if separate:
        _write(folder / "target_vocab.json", ["</s>", "<unk>", *TARGET_PIECES, *sorted(source[:20]), "<pad>"])
    extra = {"separate_vocabs": True} if separate else {}
    _settings(folder, tokenizer_class="MarianTokenizer", source_lang="en", target_lang="de", **extra)


def nllb_files(folder: Path, codes: tuple[str, ...], **settings) -> None:
    """Writes a tokenizer.json, as all of NLLB's have it."""
    from transformers import NllbTokenizer

    words = "▁the ▁house ▁is ▁small".split()
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *words, *"▁theousimal"])}
    NllbTokenizer(vocab=vocabulary, merges=[], extra_special_tokens=list(codes), **settings).save_pretrained(folder)


def madlad_files(folder: Path, codes: tuple[str, ...]) -> None:
    """Writes the SentencePiece file alone, whose user defined pieces are the languages' tokens."""
    options = {"user_defined_symbols": [f"<2{code}>" for code in codes], "pad_id": 1, "eos_id": 2, "unk_id": 0}
    sentencepiece_file(folder, name="spiece", bos_id=-1, **options)
    _settings(folder, tokenizer_class="T5Tokenizer", extra_ids=0, additional_special_tokens=[])


def _settings(folder: Path, **settings) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _write(path: Path, entries: list[str]) -> None:
    ids = {entry: i for i, entry in enumerate(dict.fromkeys(entries))}
    path.write_text(json.dumps(ids))
