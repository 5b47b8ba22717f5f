"""FairSeq's dictionaries and BPE codes -> tokenizer.json, which is all that the runtime reads.

Texts must be tokenized as they were for training (Moses, mostly): words are what stands between blanks. A piece is
written `xyz</w>` where it ends a word, as BPE codes do; the dictionary's `xyz@@` is the piece `xyz`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vlm.errors import CheckpointError, listed

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
CODES = ("bpecodes", "code", "codes", "bpe.codes", "bpecode")
END = "</w>"
SENTENCEPIECE = ("sentencepiece.bpe.model", "spm.model", "sentencepiece.model")


def read_dictionary(folder: Path, options: dict[str, Any], side: str) -> list[str]:
    """The entries in the order of their ids, the special ones first."""
    language = options.get("source_lang" if side == "encoder" else "target_lang")
    path = _dictionary_file(folder, language, side)
    entries = list(SPECIAL)
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        entry, blank, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not blank or not count.isdigit():
            raise CheckpointError(f"{path} line {number} is no dictionary entry (a token, a blank, a count).")
        entries.append(entry)
    return entries


def _dictionary_file(folder: Path, language: str | None, side: str) -> Path:
    found = sorted(folder.glob("dict.*.txt"))
    if language and (path := folder / f"dict.{language}.txt") in found:
        return path
    if len(found) == 1:
        return found[0]
    names = listed(p.name for p in found) or "none"
    wanted = f"dict.{language}.txt" if language else "dict.<language>.txt"
    raise CheckpointError(f"{folder} lacks the {side}'s dictionary {wanted}; it holds {names}.")


def tokenizer_files(folder: Path, source: list[str], target: list[str], made: Path) -> list[Path]:
    """Writes tokenizer.json (and one for the target's ids where its dictionary is another) and its configuration."""
    codes = next((folder / name for name in CODES if (folder / name).is_file()), None)
    if codes is None and any((folder / name).is_file() for name in SENTENCEPIECE):
        raise CheckpointError(f"{folder} has a SentencePiece model; FairSeq models with BPE codes are supported.")
    files = {"tokenizer.json": _with_codes(source, read_codes(codes)) if codes else _words(source)}
    if target != source:
        files["tokenizer_target.json"] = _pieces(target) if codes else _words(target)
    files["tokenizer_config.json"] = json.dumps({"dictionary_size": len(source), "unk_token_id": 3})
    for name, text in files.items():
        (made / name).write_text(text, encoding="utf-8")
    return [made / name for name in files]


def read_codes(path: Path) -> list[tuple[str, str]]:
    """Merges in their order, of subword-nmt (with its header) or fastBPE (with counts)."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if lines and lines[0].startswith("#version:"):
        if lines[0].split(":")[1].strip() != "0.2":
            raise CheckpointError(
                f"{path} has BPE codes of version {lines[0].split(':')[1].strip()}; 0.2 is supported."
            )
        lines = lines[1:]
    merges = []
    for number, line in enumerate(lines, 1):
        parts = line.split(" ")
        if len(parts) not in (2, 3):
            raise CheckpointError(f"{path} line {number} is no merge of two pieces.")
        merges.append((parts[0], parts[1]))
    return list(dict.fromkeys(merges))


def _piece(entry: str) -> str:
    return entry.removesuffix("@@") if entry.endswith("@@") else entry + END


def _vocabulary(entries: list[str]) -> dict[str, int]:
    named = [*SPECIAL, *map(_piece, entries[len(SPECIAL) :])]
    return {piece: i for i, piece in reversed(list(enumerate(named)))}  # of equals the first counts


def _with_codes(entries: list[str], merges: list[tuple[str, str]]) -> str:
    """Pieces that a merge passes through but no dictionary holds get ids beyond it: the runtime makes them <unk>."""
    from tokenizers import models

    vocabulary = _vocabulary(entries)
    for left, right in merges:
        for piece in (left, right, left + right):
            vocabulary.setdefault(piece, len(entries) + len(vocabulary))
    model = models.BPE(vocabulary, merges, unk_token="<unk>", end_of_word_suffix=END)
    return _tokenizer(model, pieces=True)


def _pieces(entries: list[str]) -> str:
    """Ids to text alone."""
    from tokenizers import models

    return _tokenizer(models.WordLevel(_vocabulary(entries), "<unk>"), pieces=True)


def _words(entries: list[str]) -> str:
    from tokenizers import models

    vocabulary = {entry: i for i, entry in reversed(list(enumerate(entries)))}
    return _tokenizer(models.WordLevel(vocabulary, "<unk>"), pieces=False)


def _tokenizer(model: Any, pieces: bool) -> str:
    from tokenizers import Tokenizer, decoders, pre_tokenizers, processors

    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", 2)])
    if pieces:
        tokenizer.decoder = decoders.BPEDecoder(suffix=END)
    return tokenizer.to_str()
