"""Text that grows token by token, and the strings at which it stops."""

from __future__ import annotations

from functools import partial

from vlm.processing.text.clean_up import clean_up, settled
from vlm.processing.text.tokenization import Tokenizer
from vlm.registry.tokenizer_rules import WordSplitter

MOST_WORDS = 64  # that are joined again with each new one
MARGIN = 8  # characters at a text's beginning that depend on what came before


def before_stop(text: str, stop: tuple[str, ...], *, keep: bool = False) -> str:
    """Cuts a text up to the first of the strings at which it stops; `keep`: with it."""
    if not stop:
        return text
    spans = [(at, at + keep * len(string)) for string in stop if (at := text.find(string)) >= 0]
    return text[: min(spans)[1]] if spans else text


class StopStrings:
    """Says after which token an output holds one of the strings at which it stops."""

    def __init__(self, tokenizer: Tokenizer, strings: tuple[str, ...]):
        self._tokenizer, self._strings = tokenizer, strings
        self._likely = ["".join(string.split()) for string in strings] if tokenizer.splitter else strings
        self._reach = max(map(len, strings)) + MARGIN  # characters before new ones in which one may begin

    def end(self, token_ids: list[int], num_known: int, *, start: int = 0) -> int | None:
        """Returns how many tokens to keep, None: all. The output begins at `start`; up to `num_known` it holds no stop
        string."""
        begin = self._begin(token_ids, num_known, start)
        text = self._end_of_text(token_ids[begin:])
        if not (any(string in text for string in self._likely) and self._holds(token_ids[start:])):
            return None
        return next(n for n in range(num_known + 1, len(token_ids) + 1) if self._holds(token_ids[start:n]))

    def _begin(self, token_ids: list[int], num_known: int, start: int) -> int:
        """Returns where the tokens begin in whose text a string may end that does not end in the `num_known` ones: to
        decode all again with every burst would take longer and longer."""
        most, count = num_known - start, 16
        text_of = partial(self._end_of_text, settled=True)
        while count < most and len(text_of(token_ids[num_known - count : num_known])) < self._reach:
            count *= 2
        return num_known - min(count, most)

    def _end_of_text(self, token_ids: list[int], *, settled: bool = False) -> str:
        """Returns the text of the last tokens; of words that are joined, which depends on all of them, without blanks.
        `settled`: what later words do not change."""
        if (splitter := self._tokenizer.splitter) is None:
            return self._tokenizer.decode(token_ids)
        words = self._tokenizer.decode_split(token_ids).split()
        return splitter.characters(" ".join(splitter.settled(words) if settled else words))

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

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...] = (), *, keep_stop: bool = False):
        self._tokenizer, self._stop, self._keep = tokenizer, stop, keep_stop
        self._ids: list[int] = []
        self._begin = self._end = 0  # tokens whose decoding goes on, and of those the ones in the text
        self._words: list[str] = []  # that a splitter joins: those that came last, behind what stands for the others
        self._last_word = ""  # which may yet grow
        self._joined_text = ""  # of those words
        self._unsettled = ""  # text in which blanks may yet be taken out
        self._unsent = ""  # text that may yet be a stop string
        self._num_sent = 0  # characters

    def push(self, token_ids: tuple[int, ...], *, last: bool = False) -> str:
        self._ids += token_ids
        if last:
            return before_stop(self._tokenizer.decode(self._ids), self._stop, keep=self._keep)[self._num_sent :]
        self._unsent += self._grown()
        text = before_stop(self._unsent, self._stop, keep=self._keep)
        overlap = max((_overlap(text, string) for string in self._stop), default=0)
        piece = text[: len(text) - overlap]
        self._unsent = self._unsent[len(piece) :]
        self._num_sent += len(piece)
        return piece

    def _grown(self) -> str:
        """Returns what comes to the text."""
        text, splitter = self._written(), self._tokenizer.splitter
        text = self._joined(text, splitter) if splitter else text
        return self._cleaned_up(text) if self._tokenizer.cleans_up else text

    def _written(self) -> str:
        """Returns what the model has written since. Only the end is decoded, with what the last visible tokens were: a
        space may depend on them."""
        before = self._tokenizer.decode_split(self._ids[self._begin : self._end])
        after = self._tokenizer.decode_split(self._ids[self._begin :])
        # an unfinished byte sequence decodes to U+FFFD
        if len(after) <= len(before) or after.endswith("\ufffd"):
            return ""
        self._begin, self._end = self._end, len(self._ids)
        return after[len(before) :]

    def _cleaned_up(self, written: str) -> str:
        """Returns what is settled with the text that comes: no pattern reaches from it into the rest."""
        self._unsettled += written
        text = settled(self._unsettled)
        self._unsettled = self._unsettled[len(text) :]
        return clean_up(text)

    def _joined(self, written: str, splitter: WordSplitter) -> str:
        """Returns what comes to the text. How a word joins it depends on those before and on the next ones."""
        whole, self._last_word = _words(self._last_word + written)
        self._words += whole
        settled, before = splitter.settled([*self._words, *self._last_word.split()]), self._joined_text
        text = splitter.join(" ".join(settled))
        if not text.startswith(before):
            return ""
        self._joined_text = text
        if len(settled) >= MOST_WORDS:
            start = splitter.context(settled)
            self._words[: len(settled)] = start
            self._joined_text = splitter.join(" ".join(start))
        return text[len(before) :]


def _words(text: str) -> tuple[list[str], str]:
    """Returns a text's words that have ended, and its last one, if it has not."""
    words = text.split()
    return (words[:-1], words[-1]) if words and not text[-1].isspace() else (words, "")
