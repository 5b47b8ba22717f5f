"""The tokenizer of a NeMo archive, as its configuration names it -> tokenizer.json: all that the runtime reads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlm.artifacts.hugging_face.tokenizer_file import read_tokenizer
from vlm.convert.sentencepiece_file import read_model, tokenizer_of
from vlm.convert.tokenizer_files import make_tokenizer
from vlm.errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_TEXT = "<|endoftext|>"  # begins and ends GPT-2's texts
BERT = {"bos": "[CLS]", "eos": "[SEP]", "pad": "[PAD]"}


@dataclass(frozen=True)
class NamedTokens:
    """A tokenizer, and its tokens that have a part in a text: "bos", "eos", "pad"."""

    fast: Tokenizer
    ends: Mapping[str, str]


@dataclass(frozen=True)
class TokenizerFiles:
    """What goes into the checkpoint, and what it says of the model."""

    paths: tuple[Path, ...]
    size: int  # ids, without those that pad the embedding
    ids: dict[str, int]  # "bos_token_id", "eos_token_id", "pad_token_id", …


def read_named_tokens(folder: Path, config: Mapping[str, Any], scratch: Path) -> NamedTokens:
    """Reads the tokenizer with the tokens that a configuration adds. CheckpointError for one that is not there, damaged
    or of a kind that cannot be read."""
    settings = settings_of(config)
    if (folder / "tokenizer.json").is_file():
        fast, ends = read_tokenizer(folder / "tokenizer.json", CheckpointError), {}
    elif settings.get("model"):
        fast, ends = _sentencepiece(_file(folder, settings["model"]))
    elif settings.get("vocab_file") and settings.get("merge_file"):
        fast, ends = _gpt2(_file(folder, settings["vocab_file"]), _file(folder, settings["merge_file"]), scratch)
    elif settings.get("vocab_file") and "Bert" in (kind := str(settings.get("type"))):
        fast, ends = _bert(_file(folder, settings["vocab_file"]), "Lower" in kind), BERT
    else:
        kind = settings.get("type") or settings.get("library")
        raise CheckpointError(
            f"{folder} holds no tokenizer{f' (it names {kind})' if kind else ''}; unpack it, put the tokenizer.json of"
            " its model beside model_config.yaml and convert that folder."
        )
    return NamedTokens(fast, ends | _added(fast, settings))


def settings_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns what a configuration says of its tokenizer."""
    settings = config.get("tokenizer")
    return settings if isinstance(settings, Mapping) else {}


def _file(folder: Path, name: Any) -> Path:
    """Returns what `nemo:0123_tokenizer.model`, or a path of the machine that trained it, names: the file in the
    archive."""
    wanted = Path(str(name).removeprefix("nemo:")).name
    found = next((path for path in folder.iterdir() if path.name == wanted and path.is_file()), None)
    if found is None:
        raise CheckpointError(f"{folder} lacks {wanted[:255]}, which its model_config.yaml names as its tokenizer.")
    return found


def _sentencepiece(path: Path) -> tuple[Tokenizer, dict[str, str]]:
    model = read_model(path)
    ids = {name: getattr(model.trainer_spec, f"{name}_id") for name in ("bos", "eos", "pad")}
    return tokenizer_of(model), {name: model.pieces[i].piece for name, i in ids.items() if 0 <= i < len(model.pieces)}


def _gpt2(vocabulary: Path, merges: Path, out: Path) -> tuple[Tokenizer, dict[str, str]]:
    from tokenizers import Tokenizer

    parts = out / "parts"
    parts.mkdir()
    shutil.copyfile(vocabulary, parts / "vocab.json")
    shutil.copyfile(merges, parts / "merges.txt")
    (parts / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}', encoding="utf-8")
    try:
        fast = Tokenizer.from_str(make_tokenizer(parts)["tokenizer.json"])
    except Exception as error:  # the library raises bare Exception
        reason = f"{vocabulary} and {merges.name} are no vocabulary and merges of GPT-2's kind"
        raise CheckpointError(f"{reason} ({error}).") from None
    return fast, {"bos": END_OF_TEXT, "eos": END_OF_TEXT}


def _bert(vocabulary: Path, lowercase: bool) -> Tokenizer:
    """Reads BERT's word pieces, one a line."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    try:
        fast = Tokenizer(models.WordPiece.from_file(str(vocabulary), unk_token="[UNK]"))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{vocabulary} is no vocabulary of BERT's kind ({error}).") from None
    fast.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fast.decoder = decoders.WordPiece(cleanup=False)
    special = [*BERT.values(), "[UNK]", "[MASK]"]
    fast.add_special_tokens([token for token in special if fast.token_to_id(token) is not None])
    return fast


def _added(fast: Tokenizer, settings: Mapping[str, Any]) -> dict[str, str]:
    """Gives the tokens that a configuration adds the next ids, in their order -> those that have a part in a text."""
    own, more = settings.get("special_tokens") or {}, settings.get("additional_special_tokens") or []
    names = {str(name): str(token) for name, token in own.items()} if isinstance(own, Mapping) else {}
    for token in [*(names.values() or own), *more]:
        fast.add_special_tokens([str(token)])
    return {name.removesuffix("_token"): token for name, token in names.items()}


def written(tokens: NamedTokens, out: Path) -> TokenizerFiles:
    """Writes tokenizer.json and its settings into `out`."""
    fast, ends = tokens.fast, tokens.ends
    ids = {f"{name}_token_id": fast.token_to_id(token) for name, token in ends.items() if name in ("bos", "eos", "pad")}
    paths = out / "tokenizer.json", out / "tokenizer_config.json"
    paths[0].write_text(fast.to_str(), encoding="utf-8")
    settings = {f"{name}_token": ends[name] for name in ("bos", "eos") if name in ends}
    paths[1].write_text(json.dumps(settings), encoding="utf-8")
    known_ids = {name: i for name, i in ids.items() if i is not None}
    return TokenizerFiles(paths, fast.get_vocab_size(), known_ids)
