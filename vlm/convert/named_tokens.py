"""Tokens that a folder names beside its tokenizer.json, and that Hugging Face adds to it: those of
tokenizer_config.json, and in folders of older releases of special_tokens_map.json and added_tokens.json."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vlm.artifacts.files import read_json
from vlm.artifacts.hugging_face.hf_folder import WHAT
from vlm.errors import CheckpointError

Token = dict[str, Any]  # its content and FLAGS
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
ID = re.compile(r"[0-9]{1,10}")
NAMES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))


def named_tokens(folder: Path, own: Iterable[Mapping[str, Any]]) -> list[Token]:
    """Returns them in the order in which they get their ids; `own`: the tokenizer.json's added tokens. CheckpointError
    for a file that is damaged."""
    settings = read_settings(folder / "tokenizer_config.json")
    kinds = dict.fromkeys((*NAMES, *(key for key in settings if key.endswith("_token"))))
    if not isinstance(listed := settings.get("added_tokens_decoder"), dict):
        settings |= read_settings(folder / "special_tokens_map.json")
        listed = _older(folder, settings) | {str(token.get("id")): dict(token) for token in own}
    named = [token for key in kinds for token in _tokens(settings.get(key))]
    extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens")
    if isinstance(extra, dict):  # by names
        named, extra = [*named, *_tokens([*extra.values()])], None
    names = {token["content"] for token in named}
    added = [token for i in sorted(filter(ID.fullmatch, listed), key=int) for token in _tokens(listed[i])]
    found = {token["content"]: token | {"special": token["special"] or token["content"] in names} for token in added}
    others = {token["content"]: token | {"special": True} for token in (*named, *_tokens(extra))}
    known = {str(token.get("content")) for token in own}
    return [*found.values(), *(token for name, token in others.items() if name not in known and name not in found)]


def read_settings(path: Path) -> dict[str, Any]:
    """Returns a JSON object, {} where there is no file. CheckpointError for one that is damaged."""
    return read_json(path, CheckpointError, WHAT) if path.exists() else {}


def _older(folder: Path, settings: Mapping[str, Any]) -> dict[str, Token]:
    """Returns the tokens of an added_tokens.json by their ids: special are those that have a name, or are extra."""
    special = (settings.get(key) for key in (*NAMES, "extra_special_tokens"))
    names = {token["content"] for value in special for token in _tokens(value)}
    ids = read_settings(folder / "added_tokens.json")
    return {str(i): {"content": token, "special": token in names} for token, i in ids.items()}


def _tokens(value: Any) -> Iterator[Token]:
    """Yields the tokens that a setting gives as texts or as objects; what is neither names none."""
    for each in value if isinstance(value, list) else [value]:
        given = {"content": each, "special": True} if isinstance(each, str) else each
        if isinstance(given, dict) and isinstance(content := given.get("content"), str) and content:
            plain = {"normalized": not given.get("special")}
            yield {"content": content} | {flag: bool(given.get(flag, plain.get(flag))) for flag in FLAGS}
