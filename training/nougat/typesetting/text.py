"""Random text that has to be read: frequent and rare words, pseudo-words, letters, numbers, dates, prices.

A tenth of the words, chosen by hash, is never used in training: held-out pages are written with those alone.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import random
import zlib
from pathlib import Path

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))  # a token each
BOS, PAD, EOS, UNK = range(4)
TOKEN = {c: i + 4 for i, c in enumerate(CHARACTERS)}
VOCAB_SIZE = len(CHARACTERS) + 4
# of a page's text; two of four are without capitals and stops: "plain" is words of the list alone, in lower case
STYLES = ("sentences", "sentences", "words", "plain")
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def is_held_out(word: str) -> bool:
    return zlib.crc32(word.encode()) % 10 == 0


@functools.cache
def word_table(held_out: bool) -> tuple[list[str], list[float]]:
    """Words of one side and their cumulative weights: square roots of the counts, so that rare ones are seen."""
    lines = (Path(__file__).parent / "words.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines]
    chosen = [(word, float(count) ** 0.5) for word, count in rows if is_held_out(word) == held_out]
    return [word for word, _ in chosen], list(itertools.accumulate(weight for _, weight in chosen))


class Writer:
    """Draws words and sentences from one side of the word list."""

    def __init__(self, rng: random.Random, held_out: bool = False):
        self.rng = rng
        self.style = rng.choice(STYLES)
        self.words, self.weights = word_table(held_out)

    def word(self) -> str:
        if self.style == "plain":
            return self._listed().lower()
        return self._decorated(self._cased(self._plain()))

    def prose(self, length: int) -> list[str]:
        """`length` words: sentences, the last of them perhaps broken off, or words without capitals and stops."""
        rng, words = self.rng, []
        if self.style != "sentences":
            return [self.word() for _ in range(length)]
        while len(words) < length:
            words += self.sentence(min(rng.randint(3, 11), length - len(words)))
        if rng.random() < 0.2:
            words[-1] = words[-1].rstrip(".?!:")
        return words if words[-1] else [*words[:-1], self.word()]

    def sentence(self, length: int) -> list[str]:
        """`length` words with a capital, commas and a stop."""
        rng = self.rng
        words = [self.word() for _ in range(length)]
        words[0] = words[0][:1].upper() + words[0][1:]
        for i in range(length - 1):
            chance = rng.random()
            # a semicolon stands nowhere else, and is a colon to who has hardly seen one
            words[i] += "," if chance < 0.08 else rng.choice(";;;:") if chance < 0.12 else ""
        words[-1] += rng.choice("......?!:")
        return words

    def number(self) -> str:
        rng, chance = self.rng, self.rng.random()
        if chance < 0.45:
            return str(rng.randint(0, 10 ** rng.randint(1, 5)))
        if chance < 0.65:
            return f"{rng.random() * 10 ** rng.randint(0, 3):.{rng.randint(1, 3)}f}"
        if chance < 0.75:
            return f"{rng.randint(1, 100)}%"
        if chance < 0.85:
            return f"{rng.randint(1900, 2040)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
        return f"${rng.randint(1, 9999)}" if chance < 0.92 else f"{rng.randint(1000, 99999):,}"

    def _plain(self) -> str:
        rng, chance = self.rng, self.rng.random()
        if chance < 0.62:
            return self._listed()
        if chance < 0.78:
            return rng.choice(self.words)
        if chance < 0.84:
            return self._pseudo_word()
        if chance < 0.88:
            return "".join(rng.choice(LETTERS) for _ in range(rng.randint(1, 8)))
        return self.number()

    def _listed(self) -> str:
        return self.words[bisect.bisect(self.weights, self.rng.random() * self.weights[-1])]

    def _pseudo_word(self) -> str:
        """Pronounceable, in no dictionary."""
        choose = self.rng.choice
        syllables = range(self.rng.randint(1, 4))
        return "".join(choose("bcdfghjklmnprstvwz") + choose("aeiouy") + choose(("", "", *"nrsl")) for _ in syllables)

    def _cased(self, word: str) -> str:
        chance = self.rng.random()
        return word.capitalize() if chance < 0.12 else word.upper() if chance < 0.16 else word

    def _decorated(self, word: str) -> str:
        rng, chance = self.rng, self.rng.random()
        if chance < 0.02:
            return f"({word})"
        if chance < 0.04:
            return f'"{word}"'
        if chance < 0.05:
            return f"{word}'s"
        if chance < 0.07:
            return word + rng.choice("-/_=&+@.:") + rng.choice(self.words)
        if chance < 0.075:
            return rng.choice("[{<#$~") + word + rng.choice("]}>!*|^`\\")
        return word
