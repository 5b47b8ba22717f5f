"""Text <-> token ids, from a `tokenizer.json`; and text that grows token by token."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer as FastTokenizer

from vlm.errors import EngineError, InputError, listed

# where multilingual tokenizers put the code of the source's language
LANGUAGE_PLACES = {"MBartTokenizer": "suffix", "MBart50Tokenizer": "prefix"}


@dataclass(frozen=True)
class Languages:
    """Codes that a multilingual model knows (`en_XX`), their token ids, and where the source's goes."""

    ids: dict[str, int]
    place: str  # "prefix": code, text, end; "suffix": text, end, code
    default: str | None

    def id(self, code: str) -> int:
        if code not in self.ids:
            raise InputError(f"language {code!r} is unknown; this model knows {listed(sorted(self.ids), 60)}.")
        return self.ids[code]


class Tokenizer:
    """A thin wrapper that fixes how this project encodes and decodes."""

    def __init__(self, fast: FastTokenizer, languages: Languages | None = None):
        self._fast, self.languages = fast, languages

    @classmethod
    def from_dir(cls, path: Path) -> Tokenizer | None:
        """The folder's tokenizer; None when it has none (an engine of random weights)."""
        file = path / "tokenizer.json"
        if not file.is_file():
            return None
        try:
            fast = FastTokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception
            raise EngineError(f"{file} is not a readable tokenizer: {error}.") from None
        return cls(fast, _languages(fast, path / "tokenizer_config.json"))

    def encode(self, text: str) -> list[int]:
        """Without special tokens."""
        return self._fast.encode(text, add_special_tokens=False).ids

    def encode_source(self, text: str, *, language: str | None = None, limit: int | None = None) -> list[int]:
        """As an encoder takes it, with its special tokens. `limit`: the text's end is cut off so that the whole has at
        most so many tokens. InputError for a language that the model does not know or need."""
        body = self.encode(text)
        if self.languages is None:
            if language is not None:
                raise InputError(
                    "this model takes no language codes; name the languages in the text, as it was trained."
                )
            before, after = self._ends()
        else:
            code = language or self.languages.default
            if code is None:
                raise InputError(f"the source's language is missing; give one of {listed(self.languages.ids, 60)}.")
            end = [self._fast.token_to_id("</s>")]
            mark = [self.languages.id(code)]
            before, after = (mark, end) if self.languages.place == "prefix" else ([], end + mark)
        room = len(body) if limit is None else max(0, limit - len(before) - len(after))
        return [*before, *body[:room], *after]

    def decode(self, token_ids: list[int]) -> str:
        """Special tokens are left out."""
        return self._fast.decode(token_ids, skip_special_tokens=True)

    def _ends(self) -> tuple[list[int], list[int]]:
        """The special tokens that go before and after a text."""
        whole = self._fast.encode("a")
        first = whole.special_tokens_mask.index(0) if 0 in whole.special_tokens_mask else len(whole.ids)
        last = len(whole.ids) - whole.special_tokens_mask[::-1].index(0) if first < len(whole.ids) else first
        return whole.ids[:first], whole.ids[last:]


def _languages(fast: FastTokenizer, file: Path) -> Languages | None:
    try:
        config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except ValueError as error:
        raise EngineError(f"{file} is damaged: {error}.") from None
    place = LANGUAGE_PLACES.get(str(config.get("tokenizer_class")).removesuffix("Fast"))
    if place is None:
        return None
    added = fast.get_added_tokens_decoder()
    codes = {token.content: i for i, token in added.items() if _is_code(token.content)}
    return Languages(codes, place, config.get("src_lang"))


def _is_code(token: str) -> bool:
    language, _, region = token.partition("_")
    return language.isalpha() and language.islower() and region.isalpha() and region.isupper()


class TextStream:
    """Turns growing token ids into text pieces that never end inside a character."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer, self._ids, self._sent = tokenizer, [], ""

    def push(self, token_ids: tuple[int, ...], last: bool = False) -> str:
        self._ids += token_ids
        text = self._tokenizer.decode(self._ids)
        # an unfinished byte sequence decodes to U+FFFD
        if not last and text.endswith("\ufffd"):
            return ""
        piece, self._sent = text[len(self._sent) :], text
        return piece
