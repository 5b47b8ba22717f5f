"""Text -> token ids, from a `tokenizer.json` and what a family adds to it; and back, as `detokenizer.py` does."""

from __future__ import annotations

import copy
import functools
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from tokenizers import Tokenizer as FastTokenizer

from vlm.errors import EngineError, InputError, LengthError, VlmWarning, first_line, listed
from vlm.limits import CHARACTERS_PER_TOKEN
from vlm.processing.text.clean_up import is_asked_for
from vlm.processing.text.detokenizer import Detokenizer
from vlm.processing.text.token_bounds import TokenBound, check_size
from vlm.processing.text.tokenizer_folder import TokenizerFolder
from vlm.registry.tokenizer_rules import ReadRules, TokenizerRules, no_rules

FEW = 16  # characters for a token
LONG = 2**14  # characters that take milliseconds to tokenize
MOST_WARNINGS = 5  # of texts with unknown words: a job may have many


class Piece(NamedTuple):
    """A token and its place in a text; one that is none of a text is nowhere."""

    id: int
    start: int = -1
    end: int = -1


def no_tokenizer() -> InputError:
    """Returns what says that an engine without a tokenizer was given a text."""
    return InputError(
        "this engine has no tokenizer; give token ids instead of text (input_ids), or put the tokenizer's files beside"
        " the model's config.json.",
        settings=("input_ids",),
    )


def ids_without(pieces: list[Piece], over: int, span: tuple[int, int], side: str) -> list[int]:
    """Returns the tokens without `over` of those that lie in a span of the text, from its `side` on."""
    inside = [i for i, piece in enumerate(pieces) if span[0] <= piece.start and piece.end <= span[1]]
    left_out = set() if over <= 0 else set(inside[:over] if side == "left" else inside[-over:])
    return [piece.id for i, piece in enumerate(pieces) if i not in left_out]


class Tokenizer(Detokenizer):
    """A thin wrapper that fixes how this project encodes; how it decodes is its Detokenizer's."""

    def __init__(
        self,
        fast: FastTokenizer,
        rules: TokenizerRules = TokenizerRules(),  # noqa: B008 (it is frozen)
        *,
        target: FastTokenizer | None = None,
        named_tokens: Mapping[str, str] = MappingProxyType({}),
        truncation_side: str | None = None,
        cleans_up: bool = False,
    ):
        """`target` decodes where outputs have ids of their own; `named_tokens`: of NAMED those that there are;
        `truncation_side` None: what the tokenizer's file says, else "right"; `cleans_up`: texts lose their blanks
        before signs."""
        super().__init__(target or fast, rules, cleans_up=cleans_up)
        self.languages, self.pair, self.tasks = rules.languages, rules.pair, rules.tasks
        self._dictionary, self._ends_once = rules.dictionary, rules.ends_once
        self._warnings_left = MOST_WARNINGS
        own = (fast.truncation or {}).get("direction", "right")
        self.truncation_side = truncation_side or own
        fast.no_truncation()  # a published file may say so; Hugging Face does it when it is asked to
        fast.no_padding()
        self.named_tokens, self._fast = named_tokens, fast
        self.bos_token, self.eos_token = named_tokens.get("bos_token", ""), named_tokens.get("eos_token", "")
        self._read: Mapping[str, list[int]] = {}  # ids of texts that were tokenized together
        self._bounds: list[TokenBound] = []  # of this one and its copies: to find it takes a third of a second

    @classmethod
    def from_dir(cls, path: Path, read_rules: ReadRules = no_rules) -> Tokenizer | None:
        """Returns the folder's tokenizer, with a family's rules; None when it has none (an engine of random weights).

        Raises EngineError for damaged files."""
        files = TokenizerFolder.read(path)
        if files is None:
            return None
        try:
            return cls._from_files(files, read_rules(files.fast, files.settings))
        except (AttributeError, KeyError, TypeError, ValueError):
            raise EngineError(
                f"{path / 'tokenizer_config.json'} is damaged: its values are of wrong types; fetch it again."
            ) from None

    @classmethod
    def _from_files(cls, files: TokenizerFolder, rules: TokenizerRules) -> Tokenizer:
        side = files.settings.get("truncation_side")
        cleans_up = is_asked_for(files.settings, files.target or files.fast, of_bpe=rules.cleans_up_bpe)
        named = files.named_tokens
        files.fast.encode_special_tokens = bool(files.settings.get("split_special_tokens"))  # texts hold none
        return cls(
            files.fast, rules, target=files.target, named_tokens=named, truncation_side=side, cleans_up=cleans_up
        )

    def encode(self, text: str) -> list[int]:
        """Encodes without special tokens. InputError for what is no text: half of a surrogate pair."""
        return self._ids(self.split(text))

    def together(self, texts: Iterable[str], limit: int) -> Tokenizer:
        """Returns this tokenizer, or one that has read these texts already: at once each takes half the time, and
        several threads read them. Left out are those that `check_length` looks into for this limit; where one cannot be
        read, who asks for it is told."""
        texts = [text for text in texts if len(text) < min(LONG, FEW * limit)]
        if len(texts) < 2 or self.splitter or self._dictionary:
            return self
        try:
            encodings = self._fast.encode_batch_fast(texts, add_special_tokens=False)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # as in `_encoding`
            return self
        other = copy.copy(self)
        other._read = {text: encoding.ids for text, encoding in zip(texts, encodings, strict=True)}
        return other

    def has(self, tokens: Iterable[str]) -> bool:
        """Says whether each of these is one token of the vocabulary."""
        return all(self._fast.token_to_id(token) is not None for token in tokens)

    def split(self, text: str) -> str:
        """Returns the text as its pieces are made of it: its words and signs between blanks, where a family splits."""
        if self.splitter is None:
            return text
        try:
            return self.splitter.split(text)
        except UnicodeEncodeError:
            raise _not_unicode(text) from None

    def pieces(self, text: str) -> list[Piece]:
        """Tokenizes what `split` returns, with the places in it."""
        encoding = self._encoding(text)
        places = zip(encoding.ids, encoding.offsets, strict=True)
        if self._dictionary is None:
            return [Piece(i, start, end) for i, (start, end) in places]
        size, unknown = self._dictionary.size, self._dictionary.unknown
        pieces = [Piece(i if i < size else unknown, start, end) for i, (start, end) in places]
        if self._warnings_left and (unread := [text[p.start : p.end] for p in pieces if p.id == unknown]):
            self._warn_unknown(text, unread)
        return pieces

    def _ids(self, text: str) -> list[int]:
        """Tokenizes what `split` returns."""
        if (known := self._read.get(text)) is not None:
            return [*known]
        return self._encoding(text).ids if self._dictionary is None else [piece.id for piece in self.pieces(text)]

    def _encoding(self, text: str) -> Any:
        try:
            return self._encoded(text)
        except TypeError:
            raise _not_unicode(text) from None
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # a panic of the library is no Exception, its errors are bare ones
            raise InputError(
                f"the model's tokenizer cannot read {text[:20]!r}…: {first_line(error)}; change the text."
            ) from None

    def _encoded(self, text: str) -> Any:
        if len(text) < LONG:
            return self._fast.encode(text, add_special_tokens=False)
        # it lets other threads run meanwhile, as encode does not
        [encoding] = self._fast.encode_batch([text], add_special_tokens=False)
        return encoding

    def _warn_unknown(self, text: str, pieces: list[str]) -> None:
        self._warnings_left -= 1
        rest = "" if self._warnings_left else "; further texts with such words are not named"
        begin, unknown = text[:40] + ("…" if len(text) > 40 else ""), listed(map(repr, dict.fromkeys(pieces)))
        warnings.warn(
            f"the text {begin!r} has {unknown}, not in the model's dictionary: it reads <unk> there{rest}.",
            VlmWarning,
            stacklevel=3,
        )

    def check_length(self, text: str, limit: int) -> None:
        """Raises LengthError, before it is tokenized, for a text that has more tokens than `limit` for certain."""
        check_size(len(text), limit)
        if len(text) <= FEW * limit:  # its tokens are counted
            return
        least = len(re.findall(r"\w\S*", text)) if self.splitter else self._bound(text)
        if least > limit:
            raise LengthError(
                f"the text has at least {least:,} tokens, the engine was built for {limit:,}; shorten or split it."
            )

    def shortened(self, text: str, limit: int) -> str:
        """Returns what is read of a text that is cut to `limit` tokens, before it is tokenized."""
        most = CHARACTERS_PER_TOKEN * max(1, limit)
        return text[-most:] if self.truncation_side == "left" else text[:most]

    @property
    def _bound(self) -> TokenBound:
        if not self._bounds:
            self._bounds.append(TokenBound.from_tokenizer(self._fast))
        return self._bounds[0]

    def encode_source(
        self,
        text: str,
        *,
        language: str | None = None,
        target: str | None = None,
        limit: int | None = None,
        suffix: str = "",
    ) -> list[int]:
        """Encodes a text as an encoder takes it, with its special tokens, the suffix after the text. `limit`: the text
        is cut at the `truncation_side` so that the whole has at most so many tokens. `target`: the output's language,
        which some models read there. Raises InputError for a language that the model does not know or need."""
        if self.splitter and limit is not None:  # a word is a token or more; the last ones change the ones before them
            text = " ".join(text.split(maxsplit=limit + 8)[: limit + 8])
        body, head = self.split(text), self.languages.prefix(target) if self.languages else ""
        whole = f"{body} {self.split(suffix)}".rstrip() if self.splitter else head + body + suffix
        before, after = self._around_source(language)
        if limit is None:
            ids = self._ids(whole)
        else:
            pieces = self.pieces(whole)
            over = len(pieces) + len(before) + len(after) - limit
            ids = ids_without(pieces, over, (len(head), len(head + body)), self.truncation_side)
        return [*before, *ids, *(() if self._ends_once and ids[-1:] == after else after)]

    def _around_source(self, language: str | None) -> tuple[list[int], list[int]]:
        """Returns the special tokens before and after a text of a language."""
        if self.languages is not None:
            return self.languages.around_source(language)
        if language is not None:
            raise InputError("this model takes no language codes; name the languages in the text, as it was trained.")
        return self.ends

    def id_of(self, token: str) -> int | None:
        return self._fast.token_to_id(token)

    @functools.cached_property
    def ends(self) -> tuple[list[int], list[int]]:
        """Returns the special tokens that go before and after a text."""
        try:
            whole = self._fast.encode("a")
        except Exception as error:  # the library's are bare ones
            raise EngineError(f"the model's tokenizer reads no text: {first_line(error)}; fetch it again.") from None
        first = whole.special_tokens_mask.index(0) if 0 in whole.special_tokens_mask else len(whole.ids)
        last = len(whole.ids) - whole.special_tokens_mask[::-1].index(0) if first < len(whole.ids) else first
        return whole.ids[:first], whole.ids[last:]


def _not_unicode(text: str) -> InputError:
    return InputError(f"the text {text[:20]!r}… is not valid Unicode; give it as UTF-8.")
