"""FairSeq's models of many languages: the tokens that name them, which the dictionary's file does not hold.

`translation_from_pretrained_bart` (mBART): the source's token after the end, outputs begin with the target's.
`translation_multi_simple_epoch` (M2M-100, FLORES-101): the source's token first, outputs begin with </s>, the target's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vlm.errors import ConfigError, listed, shown

MBART, MULTI = "translation_from_pretrained_bart", "translation_multi_simple_epoch"
STYLES = {"multilingual": "__{}__", "mbart": "[{}]"}
END_ID = 2


@dataclass(frozen=True)
class LanguageTokens:
    """By language; `extra`: tokens that go behind the dictionary's file, in this order."""

    tokens: dict[str, str]
    extra: list[str]
    place: str  # of the source's: "prefix" or "suffix"
    source: str | None  # where a request names none
    target: str | None

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> LanguageTokens | None:
        """Returns None for a model of one pair. Raises ConfigError for another way to name languages."""
        task = str(options.get("task") or "")
        pair = {"source": options.get("source_lang"), "target": options.get("target_lang")}
        if task == MBART:
            tokens = {code: f"[{code}]" for code in _codes(options)}
            return cls(tokens, [*tokens.values(), "<mask>"], "suffix", **pair)
        if task != MULTI and not task.startswith("multilingual"):
            return None
        if errors := _errors(options, task):
            raise ConfigError(
                f"this FairSeq model names its languages in a way that is not supported: {listed(errors)}."
            )
        style = options.get("lang_tok_style") or "multilingual"
        tokens = {code: STYLES[style].format(code) for code in _codes(options)}
        return cls(tokens, [*tokens.values(), *(["<mask>"] if style == "mbart" else [])], "prefix", **pair)

    def settings(self, entries: list[str]) -> dict[str, Any]:
        """Returns what tokenizer_config.json says of them."""
        ids = {code: entries.index(token) for code, token in self.tokens.items()}
        return {"ids": ids, "place": self.place, "default": self.source, "end_id": END_ID}

    def generation(self, entries: list[str]) -> dict[str, Any]:
        """Returns the settings of an output in the target's language, where the model names one."""
        if self.target not in self.tokens:
            return {}
        name = "decoder_start_token_id" if self.place == "suffix" else "forced_bos_token_id"
        return {name: entries.index(self.tokens[self.target])}


def _codes(options: dict[str, Any]) -> list[str]:
    langs = options.get("langs")
    if not langs and (pairs := options.get("lang_pairs")):
        pairs = pairs.split(",") if isinstance(pairs, str) else pairs
        langs = sorted({code for pair in pairs for code in str(pair).split("-")})
    codes = langs.split(",") if isinstance(langs, str) else list(langs or ())
    if not codes:
        raise ConfigError("this FairSeq model of many languages does not name them: its options lack langs.")
    return [str(code) for code in codes]


def _errors(options: dict[str, Any], task: str) -> list[str]:
    main = (options.get("langtoks") or {}).get("main") or (
        options.get("encoder_langtok"), "tgt" if options.get("decoder_langtok") else None)  # fmt: skip
    others = sorted(set(options.get("langtoks") or {}) - {"main"})
    return [
        *([f"task is {shown(task)}, supported are {MBART}, {MULTI}"] if task != MULTI else []),
        *(
            [f"langtoks are {shown(list(main))}, supported is a source's first and a target's"]
            if list(main) != ["src", "tgt"]
            else []
        ),
        *([f"langtoks of {listed(others)}"] if others else []),
        *([f"{name} is set" for name in ("lang_tok_replacing_bos_eos", "extra_data") if options.get(name)]),
        *(["lang_tok_style is unknown"] if (options.get("lang_tok_style") or "multilingual") not in STYLES else []),
    ]
