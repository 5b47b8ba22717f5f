"""Text that grows token by token, and the strings at which it stops."""

from __future__ import annotations

from vlm.processing.clean_up import clean_up, settled
from vlm.processing.tokenization import Tokenizer
from vlm.registry.tokenizer_rules import WordSplitter

MARGIN = 8  # characters at a text's beginning that depend on what came before


def before_stop(text: str, stop: tuple[str, ...], keep: bool = False) -> str:
    """Cuts a text up to the first of the strings at which it stops; `keep`: with it."""
    if not stop:
        return text
    spans = [(at, at + keep * len(string)) for string in stop if (at := text.find(string)) >= 0]
    return text[: min(spans)[1]] if spans else text


class StopStrings:
    """Says after which token an output holds one of the strings at which it stops."""

    def __init__(self, tokenizer: Tokenizer, strings: tuple[str, ...]):
        self._tokenizer, self._strings = tokenizer, strings
        self._reach = max(map(len, strings)) + MARGIN  # characters before new ones in which one may begin

    def end(self, token_ids: list[int], num_known: int) -> int | None:
        """Returns how many of all generated tokens to keep, None: all. The first `num_known` hold no stop string."""
        if not (self._holds(token_ids[self._begin(token_ids, num_known) :]) and self._holds(token_ids)):
            return None
        return next(n for n in range(num_known + 1, len(token_ids) + 1) if self._holds(token_ids[:n]))

    def _begin(self, token_ids: list[int], num_known: int) -> int:
        """Returns where the tokens begin in whose text a string may end that does not end in the `num_known` ones: to
        decode all again with every burst would take longer and longer. How words are joined depends on all of them."""
        count = num_known if self._tokenizer.splitter else 16
        while count < num_known and len(self._tokenizer.decode(token_ids[num_known - count : num_known])) < self._reach:
            count *= 2
        return max(0, num_known - count)

    def _holds(self, token_ids: list[int]) -> bool:
        text = self._tokenizer.decode(token_ids)
        return any(string in text for string in self._strings)


def _overlap(text: str, string: str) -> int:
    """Returns how many of a text's last characters a string may go on from."""
    at = max(0, len(text) - len(string) + 1)
    while (at := text.find(string[0], at)) >= 0 and not string.startswith(text[at:]):
        at += 1
    return len(text) - at if at >= 0 else 0


class TextStream:
    """Turns growing token ids into text pieces that never end inside a character or what may yet be a stop string."""

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...] = (), keep_stop: bool = False):
        self._tokenizer, self._stop, self._keep = tokenizer, stop, keep_stop
        self._as_written = tokenizer.cleaning_up(False)
        self._ids: list[int] = []
        self._text = self._sent_text = ""
        self._begin = self._end = 0  # tokens whose decoding goes on, and of those the ones in `_text`

    def push(self, token_ids: tuple[int, ...], last: bool = False) -> str:
        self._ids += token_ids
        text = before_stop(self._tokenizer.decode(self._ids) if last else self._grown(), self._stop, self._keep)
        if not last:
            overlap = max((_overlap(text, string) for string in self._stop), default=0)
            text = text[: max(len(self._sent_text), len(text) - overlap)]
        piece, self._sent_text = text[len(self._sent_text) :], text
        return piece

    def _grown(self) -> str:
        """Returns the text so far. Only its end is decoded, with what the last visible tokens were: a space may depend
        on them."""
        if self._tokenizer.splitter:
            return self._joined(self._tokenizer.splitter)
        before = self._as_written.decode(self._ids[self._begin : self._end])
        after = self._as_written.decode(self._ids[self._begin :])
        # an unfinished byte sequence decodes to U+FFFD
        if len(after) > len(before) and not after.endswith("\ufffd"):
            self._text += after[len(before) :]
            self._begin, self._end = self._end, len(self._ids)
        return clean_up(settled(self._text)) if self._tokenizer.cleans_up else self._text

    def _joined(self, splitter: WordSplitter) -> str:
        """Returns the text so far. How a word joins it depends on those before and on the next: the last two wait."""
        words = self._tokenizer.decode_split(self._ids).split()
        text = splitter.join(" ".join(words[:-2]))
        self._text = text if text.startswith(self._text) else self._text
        return self._text
