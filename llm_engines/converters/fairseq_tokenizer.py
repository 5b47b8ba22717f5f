"""FairSeq's dictionaries with BPE codes or a SentencePiece model -> tokenizer.json, all that the runtime reads.

Of BPE a piece is written `xyz</w>` where it ends a word, as codes do; the dictionary's `xyz@@` is the piece `xyz`.
Moses, where a model was trained so, comes before it: the runtime applies it (`llm_engines.tokenizers.moses`).
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_engines.converters.fairseq_languages import LanguageTokens
from llm_engines.tokenizers.piece_vocabulary import source_tokenizer, target_tokenizer
from vlm.errors import CheckpointError, ConfigError, VlmWarning, listed, shown

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
CODES = re.compile(r"(.+\.)?(bpe[._-]?)?codes?")  # bpecodes, code, ende30k.fastbpe.code
SENTENCEPIECE = re.compile(r"(spm|sentencepiece|sentence)(\..+)?\.model|.+\.spm(\.model)?|spm\..+|.+\.model")
END = "</w>"
TOKENIZERS = {"moses": True, "space": False, "none": False}  # by name: do they take Moses?
BPES = ("fastbpe", "subword_nmt", "sentencepiece")


@dataclass(frozen=True)
class TextFiles:
    """How a folder's model splits texts."""

    codes: Path | None
    sentencepiece: Path | None
    moses: dict[str, Any] | None  # settings of llm_engines.tokenizers.moses

    @classmethod
    def from_folder(cls, folder: Path, options: dict[str, Any], tokenizer: str | None = None) -> TextFiles:
        """Finds them; what neither the options nor `tokenizer` say is as FairSeq's published models are used: Moses
        with BPE codes, nothing but SentencePiece. Raises ConfigError for another tokenization."""
        bpe, name = _name(options.get("bpe")), tokenizer or _name(options.get("tokenizer"))
        errors = (
            [f"its tokenizer is {shown(name)}, supported are {listed(TOKENIZERS)}"]
            if name not in (None, *TOKENIZERS)
            else []
        )
        errors += [f"its bpe is {shown(bpe)}, supported are {listed(BPES)}"] if bpe not in (None, *BPES) else []
        if errors:
            raise ConfigError(
                f"the texts of this FairSeq model cannot be split as it was trained: {'; '.join(errors)}."
            )
        codes = _named(folder, CODES) if bpe != "sentencepiece" else None
        sentencepiece = _named(folder, SENTENCEPIECE) if codes is None else None
        takes_moses = codes is not None if name is None else TOKENIZERS[name]
        return cls(codes, sentencepiece, _moses(options) if takes_moses else None)

    @property
    def summary(self) -> str:
        """Says in words what a text goes through."""
        moses = f"Moses ({self.moses['source']} to {self.moses['target']}), " if self.moses else ""
        kind = "BPE codes" if self.codes else "SentencePiece" if self.sentencepiece else "words as they are"
        return moses + kind


def _name(option: Any) -> str | None:
    """Reads a class's name: FairSeq gives it alone, or with its settings as `_name`."""
    name = option.get("_name") if isinstance(option, dict) else option
    return None if name in (None, "", "None") else str(name)


def _moses(options: dict[str, Any]) -> dict[str, Any]:
    tokenizer = options.get("tokenizer")
    settings = options | tokenizer if isinstance(tokenizer, dict) else options
    languages = {side: str(options.get(f"{side}_lang") or "en") for side in ("source", "target")}
    return languages | {
        "dash_splits": not settings.get("moses_no_dash_splits"),
        "escape": not settings.get("moses_no_escape"),
    }


def _named(folder: Path, pattern: re.Pattern[str]) -> Path | None:
    """Returns the file whose name matches; of several the one with the shortest name."""
    paths = [path for path in folder.iterdir() if pattern.fullmatch(path.name) and path.is_file()]
    return min(paths, key=lambda path: (len(path.name), path.name), default=None)


def languages(folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Returns source_lang and target_lang: the options' own, else what the folder's name says of its dictionaries."""
    if options.get("source_lang") and options.get("target_lang"):
        return {name: options[name] for name in ("source_lang", "target_lang")}
    codes = {path.name[len("dict.") : -len(".txt")] for path in folder.glob("dict.*.txt")}
    pairs = re.findall(r"(?=(?:^|[._-])([a-zA-Z_]+)[-_]([a-zA-Z_]+?)(?:[._-]|$))", folder.name)
    pair = next((pair for pair in pairs if set(pair) <= codes), (None, None))
    return dict(zip(("source_lang", "target_lang"), pair, strict=True))


def read_dictionary(
    folder: Path, options: dict[str, Any], side: str, tokens: LanguageTokens | None = None
) -> list[str]:
    """Returns the entries in the order of their ids, the special ones first, the languages' last."""
    language = options.get("source_lang" if side == "encoder" else "target_lang")
    path = _dictionary_file(folder, language, side)
    entries = list(SPECIAL)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # not splitlines: an entry may hold other separators
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: it is no UTF-8 ({error}); fetch it again.") from None
    for number, line in enumerate(lines, 1):
        entry, blank, count = line.rstrip().removesuffix(" #fairseq:overwrite").rpartition(" ")
        if line.strip() and (not blank or not count.isdigit()):
            raise CheckpointError(f"{path} line {number} is no dictionary entry (a token, a blank, a count).")
        entries += [entry] if line.strip() else []
    return [*entries, *(token for token in (tokens.extra if tokens else ()) if token not in entries)]


def _dictionary_file(folder: Path, language: str | None, side: str) -> Path:
    paths = sorted((*folder.glob("dict.*.txt"), *folder.glob("dict.txt")))
    if language and (path := folder / f"dict.{language}.txt") in paths:
        return path
    if len(paths) == 1:
        return paths[0]
    names = listed(p.name for p in paths) or "none"
    name = f"dict.{language}.txt" if language else "dict.<language>.txt"
    raise CheckpointError(f"{folder} lacks the {side}'s dictionary {name}; it holds {names}.")


def tokenizer_files(
    folder: Path,
    source: list[str],
    target: list[str],
    *,
    out: Path,
    text: TextFiles | None = None,
    tokens: LanguageTokens | None = None,
    pair: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Writes tokenizer.json (and one for the target's ids where its dictionary is another) and its configuration.
    `pair`: what `languages` says."""
    text = text or TextFiles.from_folder(folder, {}, "none")
    if text.sentencepiece:
        special = [*SPECIAL, *(tokens.extra if tokens else ())]
        files = {"tokenizer.json": source_tokenizer(text.sentencepiece, source),
                 "tokenizer_target.json": target_tokenizer(target, special)}  # fmt: skip
    else:
        if not text.codes and any(entry.endswith("@@") for entry in source):
            warnings.warn(
                f"{folder} has no BPE codes (bpecodes), but pieces in its dictionary: texts must be split already.",
                VlmWarning,
                stacklevel=2,
            )
        files = {"tokenizer.json": _with_codes(source, read_codes(text.codes)) if text.codes else _words(source)}
        if target != source:
            files["tokenizer_target.json"] = _pieces(target) if text.codes else _words(target)
    config = {"dictionary_size": len(source), "unk_token_id": 3} | ({"moses": text.moses} if text.moses else {})
    config |= {"languages": tokens.settings(source)} if tokens else pair or {}
    files["tokenizer_config.json"] = json.dumps(config)
    for name, content in files.items():
        (out / name).write_text(content, encoding="utf-8")
    return [out / name for name in files]


def read_codes(path: Path) -> list[tuple[str, str]]:
    """Merges in their order, of subword-nmt (with its header) or fastBPE (with counts)."""
    try:
        lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: it is no UTF-8 ({error}); fetch it again.") from None
    if lines and lines[0].startswith("#version:"):
        if lines[0].split(":")[1].strip() != "0.2":
            raise CheckpointError(
                f"{path} has BPE codes of version {lines[0].split(':')[1].strip()}; 0.2 is supported."
            )
        lines = lines[1:]
    merges = []
    for number, line in enumerate(lines, 1):
        parts = line.rstrip("\r ").split(" ")
        if len(parts) not in (2, 3):
            raise CheckpointError(f"{path} line {number} is no merge of two pieces.")
        if END in parts[:2]:
            raise CheckpointError(f"{path} has BPE codes of version 0.1 ({END} stands alone); 0.2 is supported.")
        merges.append((parts[0], parts[1]))
    return list(dict.fromkeys(merges))


def _piece(entry: str) -> str:
    return entry.removesuffix("@@") if entry.endswith("@@") else entry + END


def _vocabulary(entries: list[str]) -> dict[str, int]:
    pieces = [*SPECIAL, *map(_piece, entries[len(SPECIAL) :])]
    return {piece: i for i, piece in reversed(list(enumerate(pieces)))}  # of equals the first counts


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
