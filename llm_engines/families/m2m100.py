"""M2M100 and NLLB-200, which translate from any of their languages into any other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_engines.families.bart import ROLES, bart_shape
from llm_engines.tokenizers.piece_vocabulary import dictionary_of, vocabulary_tokenizer
from llm_engines.tokenizers.vocabulary_file import existing, read_vocabulary
from vlm.registry.spec import FamilySpec
from vlm.registry.tokenizer_rules import Languages, Settings, TokenizerRules

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# transformers' tokenization_m2m_100.py: by `language_codes`, in the order of their ids
CODES = {
    "m2m100": "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr"
    " ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps"
    " pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu",
    "wmt21": "en ha is ja cs ru zh de",
}
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
FLORES = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}")  # NLLB's codes: a language and its script
SHORT = re.compile(r"__[a-z]+__")  # M2M100's


def make_tokenizer(folder: Path, settings: Settings) -> dict[str, str] | None:
    """Returns M2M100's tokenizer, which is published as a vocabulary and a SentencePiece model; None for a folder
    without the vocabulary. The languages' tokens are not in it, but follow it."""
    if not (folder / "vocab.json").is_file():
        return None
    pieces = existing(folder / "sentencepiece.bpe.model", "a vocab.json")
    codes = CODES.get(str(settings.get("language_codes")), CODES["m2m100"]).split()
    languages = [f"__{code}__" for code in codes]
    entries = [*read_vocabulary(folder / "vocab.json", SPECIAL), *languages]
    special = [*SPECIAL, *languages]
    return {"tokenizer.json": vocabulary_tokenizer(pieces, entries, special)}


def tokenizer_rules(tokenizer: Tokenizer, settings: Settings) -> TokenizerRules:
    """Returns the languages, which the tokenizer itself shows: `eng_Latn` is NLLB's, `__en__` is M2M100's."""
    tokens = {token.content: i for i, token in tokenizer.get_added_tokens_decoder().items()}
    end, dictionary = tokenizer.token_to_id("</s>"), dictionary_of(tokenizer)
    flores = {token: i for token, i in tokens.items() if FLORES.fullmatch(token)}
    if end is None or not (codes := flores or {t.strip("_"): i for t, i in tokens.items() if SHORT.fullmatch(t)}):
        return TokenizerRules(dictionary=dictionary, cleans_up_bpe=dictionary is not None)
    first = not (flores and settings.get("legacy_behaviour"))
    default = settings.get("src_lang") or ("eng_Latn" if flores else "en")
    affixes = ("", "") if flores else ("__", "__")
    languages = Languages(codes, end, first, starts_output=False, default=default, affixes=affixes)
    return TokenizerRules(languages, dictionary=dictionary, cleans_up_bpe=dictionary is not None)


def _m2m(vocab_size: int, **sizes: Any) -> dict[str, Any]:
    """Returns the published shapes of facebook/m2m100_* and facebook/nllb-200-*."""
    return bart_shape("m2m_100", vocab_size, activation_function="relu", scale_embedding=True, **sizes)


M2M100 = FamilySpec(
    name="m2m100",
    summary="Translation, many to many: M2M100, NLLB-200 (facebook/m2m100_*, facebook/nllb-200-*)",
    roles=ROLES,
    matches=lambda config: config.get("model_type") == "m2m_100" and bool(config.get("is_encoder_decoder", True)),
    inputs=("text",),
    tokenizer_rules=tokenizer_rules,
    make_tokenizer=make_tokenizer,
    base_prefixes=("model.",),
    architectures={
        "m2m100-418m": lambda: _m2m(128112),
        "nllb-200-600m": lambda: _m2m(256206),
    },
)
