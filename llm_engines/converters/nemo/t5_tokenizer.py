"""The tokens that NeMo gives a T5 beside those of its tokenizer's file, and which of them begin and end texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from llm_engines.converters.nemo.tokenizer import (
    NamedTokens,
    TokenizerFiles,
    read_named_tokens,
    settings_of,
    written,
)
from vlm.errors import CheckpointError, ConfigError, listed, shown
from vlm.limits import MAX_ADDED_TOKENS

BASE = {"cls": "<cls>", "sep": "<sep>", "mask": "<mask>", "pad": "<pad>", "bos": "<bos>", "eos": "<eos>"}
ENDS = ("bos", "eos", "pad")


def tokenizer_files(folder: Path, config: Mapping[str, Any], out: Path) -> TokenizerFiles:
    """Writes tokenizer.json and its settings into `out`. CheckpointError for a tokenizer that is not there, damaged, of
    a kind that cannot be read, or without the tokens that begin and end a text."""
    tokens = _with_special_tokens(read_named_tokens(folder, config, out), config)
    begins, ends, start = text_ends(config)
    _enclose(tokens, first=start if begins else None, last="eos" if ends else None)
    files = written(tokens, out)
    if absent := [name for name in ENDS if f"{name}_token_id" not in files.ids]:
        raise CheckpointError(f"the tokenizer in {folder} has no token for {listed(absent)}; it is not that of a T5.")
    return replace(files, ids=files.ids | {"decoder_start_token_id": files.ids[f"{start}_token_id"]})


def text_ends(config: Mapping[str, Any]) -> tuple[bool, bool, str]:
    """Returns whether a text is read with a token before it, whether with one after it, and what its output begins
    with, "bos" or "pad": as the model was tuned, or else as NeMo pretrains one and as Google did."""
    data = config.get("data")
    train = data.get("train_ds") if isinstance(data, Mapping) else None
    if isinstance(train, Mapping):
        usual = any(kind in str(config.get("target")) for kind in ("SFT", "Finetune"))
        begins, ends = (train.get(f"add_{name}_to_input", train.get(f"add_{name}", usual)) for name in ("bos", "eos"))
        return bool(begins), bool(ends), "pad" if train.get("replace_bos_with_pad") else "bos"
    is_converted = _is_converted(config)
    return False, is_converted, "pad" if is_converted else "bos"


def _is_converted(config: Mapping[str, Any]) -> bool:
    """Says whether NeMo's script made the model of one of Google's."""
    return bool(settings_of(config).get("add_sentinel_tokens_first"))


def _with_special_tokens(tokens: NamedTokens, config: Mapping[str, Any]) -> NamedTokens:
    """Adds tokens in NeMo's order, each with the next id unless there is one of its name."""
    settings, fast = settings_of(config), tokens.fast
    if (count := settings.get("num_sentinel_tokens") or 0) not in range(MAX_ADDED_TOKENS):
        raise ConfigError(f"num_sentinel_tokens is {shown(count)}, the limit is {MAX_ADDED_TOKENS:,}.")
    sentinels = [f"<extra_id_{i}>" for i in range(count)]
    base = {}
    if settings.get("library") == "sentencepiece":
        base = BASE | dict(_own_ends(tokens, 0 if _is_converted(config) else 1))
        if settings.get("add_sentinel_tokens_in_reverse_order"):
            sentinels.reverse()
    groups = [list(base.values()), sentinels]
    if _is_converted(config):
        groups.reverse()
    for token in [*groups[0], *groups[1], *_modes(config)]:
        fast.add_special_tokens([token])
    ends = {name: base[name] for name in ENDS} if base else _usual_ends(fast) | dict(tokens.ends)
    return NamedTokens(fast, ends)


def _modes(config: Mapping[str, Any]) -> list[str]:
    """Returns the tokens that say how UL2's texts were masked."""
    data = config.get("data")
    is_ul2 = isinstance(data, Mapping) and data.get("dataset_type") == "ul2"
    return [f"<extra_id_{name}>" for name in "rsx"] if is_ul2 else []


def _own_ends(tokens: NamedTokens, first_pad: int) -> Iterator[tuple[str, str]]:
    """Yields the ends that a SentencePiece file names. NeMo takes id 0 for none, but for Google's padding."""
    for name, token in tokens.ends.items():
        if (i := tokens.fast.token_to_id(token)) is not None and i >= (first_pad if name == "pad" else 1):
            yield name, token


def _usual_ends(fast: Tokenizer) -> dict[str, str]:
    """Returns the ends of a tokenizer that does not name them, by what they are usually called."""
    names = {"bos": ("[CLS]", "<bos>", "<s>", "<pad>"), "eos": ("[SEP]", "</s>", "<eos>", "<|endoftext|>"),
             "pad": ("[PAD]", "<pad>", "</s>", "<|endoftext|>")}  # fmt: skip
    found = {name: next((x for x in usual if fast.token_to_id(x) is not None), None) for name, usual in names.items()}
    return {name: token for name, token in found.items() if token is not None}


def _enclose(tokens: NamedTokens, *, first: str | None, last: str | None) -> None:
    """Puts tokens of these names before and after each text, and no others."""
    from tokenizers.processors import TemplateProcessing

    before, after = (tokens.ends.get(name or "") for name in (first, last))
    ids = {token: tokens.fast.token_to_id(token) for token in (before, after) if token is not None}
    parts = [part for part in (before, "$A", after) if part is not None]
    tokens.fast.post_processor = TemplateProcessing(parts, special_tokens=list(ids.items()))
