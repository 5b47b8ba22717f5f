"""FairSeq's translation transformers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_engines.tokenizers.moses import Moses
from vlm.registry.spec import ConverterRef, FamilySpec, Role
from vlm.registry.tokenizer_rules import Dictionary, Languages, Settings, TokenizerRules, language_pair

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TAR_ENDINGS = (".tar", ".tar.bz2", ".tar.gz", ".tar.xz", ".tbz", ".tbz2", ".tgz", ".txz")


def _is_fairseq(path: Path) -> bool:
    if path.is_file():
        return path.name.lower().endswith(TAR_ENDINGS)
    has_dictionary = (path / "dict.txt").is_file() or any(path.glob("dict.*.txt"))
    return has_dictionary and any(path.glob("*.pt")) and not (path / "config.json").exists()


CONVERTER = ConverterRef(
    "fairseq", "FairSeq", "llm_engines.converters.fairseq:convert", _is_fairseq, options=("tokenizer",)
)


def tokenizer_rules(tokenizer: Tokenizer, settings: Settings) -> TokenizerRules:
    """Returns what the converter wrote down: Moses, the dictionary's end, the languages' tokens or their pair."""
    size, unknown = settings.get("dictionary_size"), settings.get("unk_token_id")
    dictionary = None if size is None or unknown is None else Dictionary(int(size), int(unknown))
    languages = _languages(settings.get("languages"))
    pair = language_pair(settings) if languages is None else None
    return TokenizerRules(languages, Moses.from_config(settings.get("moses")), dictionary, pair)


def _languages(settings: Any) -> Languages | None:
    if not isinstance(settings, dict):
        return None
    ids = {str(code): int(token_id) for code, token_id in settings["ids"].items()}
    first, default = settings["place"] == "prefix", settings.get("default")
    return Languages(ids, int(settings["end_id"]), first, starts_output=not first, default=default)


FAIRSEQ = FamilySpec(
    name="fairseq",
    summary="Translation: FairSeq's transformers, archives or folders (.pt, dict.*.txt, BPE or SentencePiece)",
    roles={"encoder": Role("bart-encoder"), "decoder": Role("bart")},
    matches=lambda config: False,  # its folders have no config.json
    inputs=("text",),
    tokenizer_rules=tokenizer_rules,
)
