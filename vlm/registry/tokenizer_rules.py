"""What a family's texts need beside their tokenizer.json: languages, words that are split first, a dictionary's end.

A family reads them out of a tokenizer_config.json: (tokenizer, settings) -> TokenizerRules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from vlm.errors import InputError, listed
from vlm.registry.tasks import TaskPrompts

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Settings = Mapping[str, Any]  # of a tokenizer_config.json


@dataclass(frozen=True)
class Languages:
    """Codes that a multilingual model knows (`en_XX`), their token ids, and where these go."""

    ids: Mapping[str, int]
    end_id: int  # of a source's end
    source_first: bool  # True: code, text, end; False: text, end, code
    starts_output: bool  # True: an output starts from the target's token; False: it begins with it (forced BOS)
    default: str | None = None  # of sources
    target_in_text: bool = False  # a text begins with the target's token, and may do so itself; the source has none
    affixes: tuple[str, str] = ("", "")  # of a code in its token (`__en__`), which is taken for the code, too

    def code(self, given: str) -> str:
        """Returns the code that a user gave, or whose token. InputError for a language that is unknown."""
        code = given if given in self.ids else given.removeprefix(self.affixes[0]).removesuffix(self.affixes[1])
        if code not in self.ids:
            raise InputError(f"language {given!r} is unknown; this model knows {listed(sorted(self.ids), 60)}.")
        return code

    def id(self, code: str) -> int:
        return self.ids[self.code(code)]

    def prefix(self, target: str | None) -> str:
        """Returns what a text begins with for an output in that language. InputError as of `code`."""
        return f"{self.code(target).join(self.affixes)} " if self.target_in_text and target is not None else ""

    def around_source(self, code: str | None) -> tuple[list[int], list[int]]:
        """Returns the tokens before and after a text. InputError for a language that is unknown or missing."""
        if self.target_in_text:
            return [], [self.end_id]
        if (code := code or self.default) is None:
            raise InputError(
                "the source's language is missing; give src_lang, which vlm translate, summarize and encode take, as"
                f" one of {listed(self.ids, 60)}.",
                settings=("src_lang",),
            )
        mark = self.id(code)
        return ([mark], [self.end_id]) if self.source_first else ([], [self.end_id, mark])

    def first_token(self, target: str) -> int | None:
        """Returns the token that an output is made to begin with; None where the model is told in another way."""
        token = self.id(target)
        return None if self.starts_output or self.target_in_text else token


class WordSplitter(Protocol):
    """Sets the words and signs of a text apart before it is tokenized, and joins those of an output."""

    def split(self, text: str) -> str:
        """Returns the text with blanks between its words and signs. UnicodeEncodeError for half a surrogate pair."""
        ...

    def join(self, text: str) -> str:
        """Returns the text that the words and signs between blanks make."""
        ...

    def characters(self, text: str) -> str:
        """Returns what `join` makes of words and signs, without its blanks: it does not depend on those before."""
        ...

    def settled(self, words: list[str]) -> list[str]:
        """Returns a growing text's first words, whose joining no later one changes; the last of all may yet grow."""
        ...

    def context(self, words: list[str]) -> list[str]:
        """Returns words, most often few, behind which others join as they do behind all of these: their last ones."""
        ...


@dataclass(frozen=True)
class Dictionary:
    """Ids from `size` on are pieces that a tokenizer passes through and a model does not know: they read `unknown`."""

    size: int
    unknown: int


@dataclass(frozen=True)
class TokenizerRules:
    """By default a tokenizer.json says all."""

    languages: Languages | None = None
    splitter: WordSplitter | None = None
    dictionary: Dictionary | None = None
    # the source's language and the target's, where there are no others; ("", ""): which ones is not known
    pair: tuple[str, str] | None = None
    tasks: TaskPrompts | None = None  # of a model that is told what to do by where its output begins
    shown: frozenset[str] = frozenset()  # special tokens that texts keep
    drops_half_characters: bool = False  # bytes that make no character are left out of texts, not shown as U+FFFD
    ends_once: bool = False  # a text that ends in its end token, as it is or where it is cut, gets no second one
    cleans_up_bpe: bool = False  # where the settings say that texts are cleaned up, those of BPE are, too


def language_pair(settings: Settings) -> tuple[str, str]:
    """Returns the source's language and the target's of a model of one pair; ("", "") where they do not say both."""
    source, target = (str(settings.get(name) or "") for name in ("source_lang", "target_lang"))
    return (source, target) if source and target else ("", "")


# AttributeError, KeyError, TypeError or ValueError of a reader: the settings are damaged
ReadRules = Callable[["Tokenizer", Settings], TokenizerRules]


def no_rules(tokenizer: Tokenizer, settings: Settings) -> TokenizerRules:
    return TokenizerRules()
