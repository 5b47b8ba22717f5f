"""A SentencePiece model and FairSeq's dictionary of its pieces -> tokenizers with the dictionary's ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vlm.convert.sentencepiece_file import read_model, tokenizer_of

BLANK = "▁"
END_ID, UNKNOWN_ID = 2, 3
NEVER = "\ue000"  # of private use: begins what no text can hold


def source_tokenizer(path: Path, entries: list[str]) -> str:
    """Splits as SentencePiece does; pieces that the dictionary lacks get ids beyond it: <unk> to the runtime."""
    from tokenizers import Tokenizer, processors

    content = json.loads(tokenizer_of(read_model(path)).to_str())
    model, control = content["model"], {token["content"] for token in content["added_tokens"]}
    content["added_tokens"] = []  # in a text `</s>` is four characters, as SentencePiece has it
    model["vocab"] = (_unigram if model["type"] == "Unigram" else _bpe)(model, entries, control)
    if model["type"] == "Unigram":
        model["unk_id"] = UNKNOWN_ID
    tokenizer = Tokenizer.from_str(json.dumps(content))
    ends = [("</s>", END_ID)]
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", ends)
    return tokenizer.to_str()


def _unigram(model: dict[str, Any], entries: list[str], control: set[str]) -> list[list[Any]]:
    """Makes a unigram model, whose list is in the order of the ids."""
    scores = {piece: score for piece, score in model["vocab"] if piece not in control}
    unknown = model["vocab"][model["unk_id"]][0]
    worst = min(scores.values())
    pieces = []
    for i, entry in enumerate(entries):
        has_score = i > UNKNOWN_ID and entry in scores and entry != unknown
        pieces.append([entry, scores.pop(entry)] if has_score else [f"{NEVER}{i} {entry}", worst])
    pieces[UNKNOWN_ID] = [unknown, scores.pop(unknown)]
    return [*pieces, *([piece, score] for piece, score in scores.items())]


def _bpe(model: dict[str, Any], entries: list[str], control: set[str]) -> dict[str, int]:
    ids = {entry: i for i, entry in reversed(list(enumerate(entries))) if i > UNKNOWN_ID}
    pieces = [piece for piece in model["vocab"] if piece not in control]
    vocabulary = {piece: ids.get(piece, len(entries) + i) for i, piece in enumerate(pieces)}
    return vocabulary | {model["unk_token"]: UNKNOWN_ID}


def target_tokenizer(entries: list[str], languages: list[str]) -> str:
    """Turns ids into text: pieces are joined, `▁` is a blank, the tokens of languages are left out."""
    from tokenizers import Tokenizer, decoders, models

    special = entries[: UNKNOWN_ID + 1]
    vocabulary = {entry: i for i, entry in reversed(list(enumerate(entries)))}
    vocabulary |= {entry: i for i, entry in enumerate(special)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, special[UNKNOWN_ID]))
    tokenizer.add_special_tokens([*special, *languages])
    tokenizer.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace(BLANK, " "), decoders.Strip(" ", 1, 0)])
    return tokenizer.to_str()
