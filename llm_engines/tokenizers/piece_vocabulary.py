"""A SentencePiece model and a vocabulary of its own order -> tokenizers with the vocabulary's ids.

Pieces that the vocabulary lacks get ids beyond it: <unk> to the runtime (`vlm.registry.tokenizer_rules.Dictionary`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlm.convert.sentencepiece_file import read_model, tokenizer_of
from vlm.registry.tokenizer_rules import Dictionary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BLANK = "▁"
END, UNKNOWN = "</s>", "<unk>"
NEVER = "\ue000"  # of private use: begins what no text can hold
BEYOND = f"{NEVER}beyond"  # the entry behind the vocabulary's last one
FAR = -1e6  # the score of an entry that is no piece: it is taken where nothing else fits


def source_tokenizer(path: Path, entries: Sequence[str]) -> str:
    """Splits as FairSeq does: in a text `</s>` is four characters, and what is no piece is nothing."""
    names = [f"{NEVER}{i} {entry}" for i, entry in enumerate(entries)]
    return _ended(_with_ids(path, entries, names, entries.index(UNKNOWN)), entries.index(END)).to_str()


def vocabulary_tokenizer(path: Path, entries: Sequence[str], special: Sequence[str]) -> str:
    """Splits as Hugging Face's tokenizers do that look pieces up in a vocab.json: a text may hold the `special` tokens,
    and entries that are no pieces where the model knows no piece. Its ids make text again, too."""
    tokenizer = _with_ids(path, entries, entries, entries.index(UNKNOWN))
    tokenizer.add_special_tokens(list(special))
    return _ended(tokenizer, entries.index(END)).to_str()


def dictionary_of(tokenizer: Tokenizer) -> Dictionary | None:
    """Returns where the vocabulary of one that `vocabulary_tokenizer` made ends; None for any other."""
    beyond, unknown = tokenizer.token_to_id(BEYOND), tokenizer.token_to_id(UNKNOWN)
    return None if beyond is None or unknown is None else Dictionary(beyond, unknown)


def _ended(tokenizer: Tokenizer, end_id: int) -> Tokenizer:
    """Returns the tokenizer with an end behind its texts."""
    from tokenizers import processors

    tokenizer.post_processor = processors.TemplateProcessing(f"$A {END}", f"$A {END} $B {END}", [(END, end_id)])
    return tokenizer


def _with_ids(path: Path, entries: Sequence[str], names: Sequence[str], unknown_id: int) -> Tokenizer:
    """Gives the model's pieces the ids of the entries. `names`: what the entries that are no pieces are called."""
    from tokenizers import Tokenizer

    content = json.loads(tokenizer_of(read_model(path)).to_str())
    model, control = content["model"], {token["content"] for token in content["added_tokens"]}
    content["added_tokens"] = []
    if model["type"] == "Unigram":
        model["vocab"] = _unigram(model, entries, names, control=control, unknown_id=unknown_id)
        model["unk_id"] = unknown_id
    else:
        model["vocab"] = _bpe(model, entries, names, control=control, unknown_id=unknown_id)
    return Tokenizer.from_str(json.dumps(content))


def _unigram(
    model: dict[str, Any], entries: Sequence[str], names: Sequence[str], *, control: set[str], unknown_id: int
) -> list[list[Any]]:
    """Makes a unigram model, whose list is in the order of the ids."""
    scores = {piece: score for piece, score in model["vocab"] if piece not in control}
    unknown = model["vocab"][model["unk_id"]][0]
    unknown_score, worst, found = scores.pop(unknown), min(scores.values()), []
    for entry, name in zip(entries, names, strict=True):
        is_hidden = name.startswith(NEVER)  # one that is not sets what an unknown character costs
        found.append([entry, scores.pop(entry)] if entry in scores else [name, worst if is_hidden else FAR])
    found[unknown_id] = [unknown, unknown_score]
    return [*found, [BEYOND, worst], *([piece, score] for piece, score in scores.items())]


def _bpe(
    model: dict[str, Any], entries: Sequence[str], names: Sequence[str], *, control: set[str], unknown_id: int
) -> dict[str, int]:
    pieces = [piece for piece in model["vocab"] if piece not in control]
    known = {entry if entry in model["vocab"] and entry not in control else name: i
             for i, (entry, name) in reversed(list(enumerate(zip(entries, names, strict=True))))}  # fmt: skip
    beyond = [BEYOND, *(piece for piece in pieces if piece not in known)]
    vocabulary = known | {piece: len(entries) + i for i, piece in enumerate(beyond)}
    return vocabulary | {model["unk_token"]: unknown_id}


def target_tokenizer(entries: Sequence[str], special: Sequence[str]) -> str:
    """Turns ids into text: pieces are joined, `▁` is a blank, special tokens are left out."""
    from tokenizers import Tokenizer, decoders, models

    vocabulary = {entry: i for i, entry in reversed(list(enumerate(entries)))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, UNKNOWN))
    tokenizer.add_special_tokens(list(special))
    tokenizer.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace(BLANK, " "), decoders.Strip(" ", 1, 0)])
    return tokenizer.to_str()
