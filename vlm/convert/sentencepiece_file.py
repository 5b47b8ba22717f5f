"""A SentencePiece model (Kudo and Richardson, arXiv:1808.06226) -> the tokenizer of the same pieces.

Of Hugging Face's own conversions each is for one model family; this one reads what the file says of itself.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlm.errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

UNIGRAM, BPE = 1, 2
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # kinds of pieces
BLANK = "▁"


def read_model(path: Path) -> Any:
    """Reads the file's `ModelProto`. Raises CheckpointError where it is damaged or of a kind that is not supported, and
    with what to install where nothing here reads it."""
    try:
        from google.protobuf.message import DecodeError
    except ImportError:
        raise CheckpointError(
            f"{path} is a SentencePiece model; install what reads it (pip install protobuf) and convert again."
        ) from None
    model = _empty()
    try:
        model.ParseFromString(path.read_bytes())
    except DecodeError:
        raise CheckpointError(f"{path} is no SentencePiece model, or damaged; fetch it again.") from None
    kind = model.trainer_spec.model_type
    if not model.pieces or kind not in (UNIGRAM, BPE) or model.trainer_spec.treat_whitespace_as_suffix:
        what = "holds no pieces" if not model.pieces else "is of a kind that is not supported; unigram and BPE are"
        raise CheckpointError(f"the SentencePiece model {path} {what}.")
    return model


def _empty() -> Any:
    try:
        messages = importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    except Exception:  # it is not there, or it was made for another protobuf, which raises a kind of its own
        messages = importlib.import_module("transformers.utils.sentencepiece_model_pb2_new")
    return messages.ModelProto()


def tokenizer_of(model: Any) -> Tokenizer:
    """Turns what `read_model` gave into a tokenizer that adds no special tokens to a text."""
    from tokenizers import Tokenizer, decoders, normalizers

    tokenizer = Tokenizer((_unigram if model.trainer_spec.model_type == UNIGRAM else _bpe)(model))
    tokenizer.normalizer = normalizers.Sequence(_normalizers(model.normalizer_spec))
    tokenizer.decoder = decoders.Sequence(_decoders(model))
    if model.trainer_spec.model_type == BPE and (whole := _pieces(model, USER_DEFINED)):
        tokenizer.pre_tokenizer = _kept_whole(whole)
    tokenizer.add_special_tokens(_pieces(model, CONTROL))
    return tokenizer


def _pieces(model: Any, *kinds: int) -> list[str]:
    return [piece.piece for piece in model.pieces if piece.type in kinds]


def _unigram(model: Any) -> Any:
    from tokenizers import models

    best = max((piece.score for piece in model.pieces if piece.type == NORMAL), default=0.0)
    # as SentencePiece weighs what its user defined: before all that it could be made of
    scores = [len(p.piece) * best - 0.1 if p.type == USER_DEFINED else p.score for p in model.pieces]
    pieces = [(piece.piece, score) for piece, score in zip(model.pieces, scores, strict=True)]
    return models.Unigram(pieces, _unknown(model), byte_fallback=model.trainer_spec.byte_fallback)


def _bpe(model: Any) -> Any:
    from tokenizers import models

    # where it is defined differs between versions: this module has it in all, and transformers a function of its name
    generate_merges: Any = vars(importlib.import_module("transformers.convert_slow_tokenizer"))["generate_merges"]
    ids = {piece.piece: i for i, piece in enumerate(model.pieces)}
    scores = [(piece.piece, piece.score) for piece in model.pieces]
    specials = _pieces(model, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE)
    return models.BPE(
        ids, generate_merges(ids, scores, skip_tokens=specials), unk_token=model.pieces[_unknown(model)].piece,
        fuse_unk=True, byte_fallback=model.trainer_spec.byte_fallback,
        ignore_merges=bool(_pieces(model, USER_DEFINED)),
    )  # fmt: skip


def _unknown(model: Any) -> int:
    return next((i for i, piece in enumerate(model.pieces) if piece.type == UNKNOWN), 0)


def _kept_whole(pieces: list[str]) -> Any:
    """Lets the user's pieces stand alone, the longest first; the model then finds each as it is."""
    import re

    from tokenizers import Regex, pre_tokenizers

    longest_first = sorted(pieces, key=len, reverse=True)
    return pre_tokenizers.Split(Regex("|".join(map(re.escape, longest_first))), "isolated")


def _normalizers(spec: Any) -> list[Any]:
    from tokenizers import Regex, normalizers

    steps: list[Any] = [normalizers.Precompiled(spec.precompiled_charsmap)] if spec.precompiled_charsmap else []
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(" "))
    return [*steps, normalizers.Replace(" ", BLANK)] if spec.escape_whitespaces else steps


def _decoders(model: Any) -> list[Any]:
    from tokenizers import decoders

    unknown = decoders.Replace(model.pieces[_unknown(model)].piece, model.trainer_spec.unk_surface)
    start = [decoders.Strip(BLANK, 1, 0)] if model.normalizer_spec.add_dummy_prefix else []
    return [unknown, decoders.ByteFallback(), decoders.Fuse(), *start, decoders.Replace(BLANK, " ")]
