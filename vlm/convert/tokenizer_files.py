"""`tokenizer.json` for model folders that have none: SentencePiece files, vocabularies and merges of older releases."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlm.artifacts.files import load_json
from vlm.artifacts.hugging_face.tokenizer_file import read_tokenizer
from vlm.convert.named_tokens import FLAGS, named_tokens, read_settings
from vlm.convert.sentencepiece_file import read_model
from vlm.errors import CheckpointError, first_line
from vlm.limits import MAX_ADDED_TOKENS, MAX_TOKENIZER_BYTES
from vlm.registry.spec import FamilySpec

if TYPE_CHECKING:
    from tokenizers import Tokenizer

GENERIC = ("None", "TokenizersBackend", "PreTrainedTokenizer")  # classes of Hugging Face's that take a file as it is
SENTENCEPIECE = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
TIKTOKEN, LINE_BYTES = re.compile(rb"[A-Za-z0-9+/]+=* \d+\r?\n"), 4096  # a line of such a file: a token, its id


def make_tokenizer(folder: Path, family: FamilySpec | None = None) -> Mapping[str, str]:
    """Returns the contents of a tokenizer.json and what goes with it, by name, made in the family's way or a usual one;
    nothing where the folder holds no tokenizer at all.

    Raises CheckpointError for a tokenizer that cannot be converted, with what to install.
    """
    config = tokenizer_settings(folder)
    if family is not None and (files := family.make_tokenizer(folder, config)) is not None:
        return files
    content = _usual(folder, config)
    return {} if content is None else {"tokenizer.json": content}


def tokenizer_settings(folder: Path) -> dict[str, Any]:
    """Returns a folder's tokenizer_config.json. Where that names no class, the one is added that Hugging Face takes:
    what config.json names, else that of the model's type."""
    settings = read_settings(folder / "tokenizer_config.json")
    if settings.get("tokenizer_class"):
        return settings
    config = read_settings(folder / "config.json")
    name = config.get("tokenizer_class") or _usual_class(str(config.get("model_type")))
    return settings | ({"tokenizer_class": name} if isinstance(name, str) else {})


def _usual_class(model_type: str) -> str | None:
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    return TOKENIZER_MAPPING_NAMES.get(model_type)


def completed_settings(folder: Path) -> str | None:
    """Returns the contents of a tokenizer_config.json with the class that it lacks; None where it lacks none."""
    settings = tokenizer_settings(folder)
    lacks = settings != read_settings(folder / "tokenizer_config.json")
    return json.dumps(settings, ensure_ascii=False, indent=2) if lacks else None


def completed_tokenizer(path: Path, tokens: Sequence[str], folder: Path) -> str | None:
    """Returns the contents of a tokenizer.json with what it lacks of the tokens that its folder names, then of these
    special ones, in this order, and with texts split and joined as its settings ask for; None where that is all there.
    Raises CheckpointError for a damaged one."""
    from tokenizers import AddedToken

    own = _own_tokens(path)
    known = {str(token.get("content")): {name: token.get(name) for name in ("content", *FLAGS)} for token in own}
    absent = [token for token in named_tokens(folder, own) if token != known.get(token["content"])]
    if len(absent) > MAX_ADDED_TOKENS:
        raise CheckpointError(f"{folder} adds {len(absent):,} tokens, the limit is {MAX_ADDED_TOKENS:,}.")
    tokenizer = read_tokenizer(path, CheckpointError)
    try:
        tokenizer.add_tokens([AddedToken(**token) for token in absent])
    except UnicodeEncodeError:
        raise CheckpointError(f"{folder} names a token that is not valid Unicode; fetch the folder again.") from None
    others = [token for token in tokens if tokenizer.token_to_id(token) is None]
    tokenizer.add_special_tokens(others)
    return tokenizer.to_str() if _rebuild(tokenizer, folder) or absent or others else None


def _rebuild(tokenizer: Tokenizer, folder: Path) -> bool:
    """Has texts split and joined as Hugging Face's class does, where one of its own takes no more than the vocabulary
    of a tokenizer.json. Returns whether that is a change."""
    name = str(tokenizer_settings(folder).get("tokenizer_class")).removesuffix("Fast")
    if name in GENERIC or not _is_transformers(folder):
        return False
    before = tokenizer.to_str()
    with contextlib.suppress(CheckpointError):  # of what Hugging Face cannot read, the file holds
        theirs = _of_transformers(folder)
        if type(theirs.model) is type(tokenizer.model):
            tokenizer.normalizer, tokenizer.pre_tokenizer = theirs.normalizer, theirs.pre_tokenizer
            tokenizer.decoder = theirs.decoder
    return tokenizer.to_str() != before


def _is_transformers(folder: Path) -> bool:
    """Says whether Hugging Face reads the model, and not a publication's own code."""
    from transformers import CONFIG_MAPPING

    return str(read_settings(folder / "config.json").get("model_type")) in CONFIG_MAPPING


def _own_tokens(path: Path) -> list[dict[str, Any]]:
    """Returns the added tokens of a tokenizer.json; none of a damaged one, of which its reader tells."""
    try:
        fields = load_json(path, MAX_TOKENIZER_BYTES)
    except (OSError, ValueError):
        return []
    tokens = fields.get("added_tokens") if isinstance(fields, dict) else None
    return [token for token in tokens if isinstance(token, dict)] if isinstance(tokens, list) else []


def _usual(folder: Path, config: dict[str, object]) -> str | None:
    if any((folder / name).is_file() for name in SENTENCEPIECE):
        _check_sentencepiece(folder)
        return _from_transformers(folder)
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return _vocabulary_and_merges(folder, config)
    if (folder / "vocab.txt").is_file():  # BERT's word pieces, as of Chinese GPT-2s
        return _from_transformers(folder)
    return None


def _vocabulary_and_merges(folder: Path, config: dict[str, object]) -> str:
    """Makes byte-level BPE as the class has it that the settings name, or else the model's type: how a text is split
    before, and what it begins and ends with. Where Hugging Face knows no such class, BART's is meant."""
    if (folder / "config.json").is_file():
        with contextlib.suppress(CheckpointError):
            return _from_transformers(folder)
    return _byte_level_bpe(folder, config)


def _byte_level_bpe(folder: Path, config: dict[str, object]) -> str:
    """Makes byte-level BPE of a vocabulary and merges. A text is left as it is, is put after its first token where the
    settings say so, or between <s> and </s>, as the tokenizer's class has it."""
    from tokenizers import ByteLevelBPETokenizer
    from tokenizers.processors import RobertaProcessing, TemplateProcessing

    with _unreadable(folder):
        tokenizer = ByteLevelBPETokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>"]
    tokenizer.add_special_tokens([token for token in special if tokenizer.token_to_id(token) is not None])
    if str(config.get("tokenizer_class", "")).removesuffix("Fast") == "GPT2Tokenizer":
        begin = config.get("bos_token")
        begin = begin.get("content") if isinstance(begin, dict) else begin or "<|endoftext|>"
        if config.get("add_bos_token") and tokenizer.token_to_id(begin) is not None:
            special_ids = [(begin, tokenizer.token_to_id(begin))]
            tokenizer.post_processor = TemplateProcessing(f"{begin} $A", f"{begin} $A $B", special_ids)
        return tokenizer.to_str()
    end, begin = (tokenizer.token_to_id(token) for token in ("</s>", "<s>"))
    if end is not None and begin is not None:
        tokenizer.post_processor = RobertaProcessing(
            ("</s>", end), ("<s>", begin), trim_offsets=True, add_prefix_space=False
        )
    return tokenizer.to_str()


def _check_sentencepiece(folder: Path) -> None:
    """Raises CheckpointError for an empty file, of which the library makes an empty vocabulary, and where what reads it
    is not installed."""
    for path in (folder / name for name in SENTENCEPIECE):
        if path.is_file() and not path.stat().st_size:
            raise CheckpointError(f"{path} is empty; fetch the folder again.")
    try:
        import google.protobuf  # noqa: F401
        import sentencepiece  # noqa: F401
    except ImportError:
        raise CheckpointError(
            f"{folder} holds its tokenizer as a SentencePiece file alone; install what reads it"
            " (pip install sentencepiece protobuf) and convert again."
        ) from None


def _check_files(folder: Path) -> None:
    """Raises CheckpointError for a folder with what may block whoever reads it: the library opens files of its own
    choice."""
    for path in folder.iterdir():
        if path.exists() and not path.is_file() and not path.is_dir():
            raise CheckpointError(f"{path} is no file; remove it, then convert again.")


def _from_transformers(folder: Path) -> str:
    return _of_transformers(folder).to_str()


def _of_transformers(folder: Path) -> Tokenizer:
    from transformers import AutoTokenizer

    _check_files(folder)
    with _unreadable(folder):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    if (fast := getattr(tokenizer, "backend_tokenizer", None)) is None:
        raise CheckpointError(
            f"{folder} names the tokenizer {type(tokenizer).__name__}, which has no tokenizer.json and is not read;"
            " move its tokenizer's files elsewhere and convert again, for a model that is given token ids."
        )
    return fast


@contextlib.contextmanager
def _unreadable(folder: Path) -> Iterator[None]:
    """Turns what libraries raise of damaged tokenizers into a CheckpointError: it is of many kinds, bare ones too, and
    their panics are no Exceptions."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        if "tiktoken" in str(error):  # which is tried after SentencePiece
            _check_pieces(folder)
        reason = first_line(error)
        raise CheckpointError(f"the tokenizer in {folder} cannot be read ({reason}); fetch the folder again.") from None


def _check_pieces(folder: Path) -> None:
    """Raises CheckpointError with why a folder's SentencePiece file is not read: it is damaged, or Hugging Face's class
    takes none. One whose first line is tiktoken's is not to be such a file."""
    for path in (folder / name for name in SENTENCEPIECE if (folder / name).is_file()):
        with path.open("rb") as file:
            is_tiktoken = TIKTOKEN.match(file.read(LINE_BYTES))
        if not is_tiktoken:
            read_model(path)
            raise CheckpointError(
                f"{folder} holds its tokenizer as {path.name} alone, which Hugging Face does not read for a model of"
                " its type; put its tokenizer.json beside it, then convert again."
            )
        return
