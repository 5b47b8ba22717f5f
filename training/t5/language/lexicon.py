"""The words of the grammar and how they inflect: nouns.txt, verbs.txt and adjectives.txt, whose first lines say how."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

PERSONS = ("1s", "2s", "3s", "1p", "2p", "3p")
VOWELS = "aeiou"
# doubling follows the stress, which spelling does not show
DOUBLED = {"swim", "stop", "get", "sit", "run", "begin", "plan", "forget"}


@dataclass(frozen=True)
class Noun:
    kind: str
    en: str
    en_plural: str  # "-": none
    gender: str  # m, f, n
    de: str
    de_plural: str
    genitive: str
    weak: bool = False
    place: tuple[str, str, str] = ("", "", "")  # English "at", German of the place and of the way there

    def german(self, case: str, plural: bool) -> str:
        if plural:
            ends_so = self.de_plural[-1] in "ns"
            return self.de_plural + ("n" if case == "dat" and not ends_so else "")
        return self.genitive if case == "gen" or (self.weak and case != "nom") else self.de

    @property
    def mass(self) -> bool:
        return self.en_plural == "-"


@dataclass(frozen=True)
class Verb:
    frame: str  # as verbs.txt says
    no_progressive: bool
    no_past: bool
    en: str
    en_past: str
    en_participle: str
    prefix: str
    de: str  # infinitive without its prefix
    de_du: str
    de_er: str
    de_participle: str
    sein: bool
    subjects: tuple[str, ...]
    objects: tuple[str, ...]

    @property
    def infinitive(self) -> str:
        return self.prefix + self.de

    @property
    def zu(self) -> str:
        """zu kaufen, anzurufen"""
        return f"{self.prefix}zu{self.de}" if self.prefix else f"zu {self.de}"

    def english(self, form: str) -> str:
        """`form`: base, s, ing, past or participle; of a verb of two words the first one inflects."""
        word, _, rest = self.en.partition(" ")
        named = {"base": word, "s": third_person(word), "ing": progressive(word)}
        if form not in named:
            return self.en_past if form == "past" else self.en_participle
        return f"{named[form]} {rest}" if rest else named[form]

    def german(self, person: str) -> str:
        """Present, without the prefix."""
        return german_present(self.de, self.de_du, self.de_er)[PERSONS.index(person)]


@dataclass(frozen=True)
class Adjective:
    en: str
    en_comparative: str
    de: str
    stem: str
    de_comparative: str
    kinds: tuple[str, ...]


def third_person(word: str) -> str:
    if word == "have":
        return "has"
    if word.endswith(("s", "sh", "ch", "x", "o")):
        return word + "es"
    return word[:-1] + "ies" if word.endswith("y") and word[-2] not in VOWELS else word + "s"


def progressive(word: str) -> str:
    if word.endswith("e") and not word.endswith("ee"):
        word = word[:-1]
    return word + (word[-1] if word in DOUBLED else "") + "ing"


def german_present(infinitive: str, du: str = "-", er: str = "-") -> tuple[str, ...]:
    """The six persons. Stems in t and d take an e: arbeitest."""
    stem = infinitive[:-2] if infinitive.endswith("en") else infinitive[:-1]
    link = "e" if stem[-1] in "td" or stem.endswith(("fn", "gn", "chn")) else ""
    sharp = stem[-1] in "sßzx"
    regular_du = stem + ("t" if sharp else link + "st")
    regular = stem + link + "t"
    ich = stem + "e"
    return ich, regular_du if du == "-" else du, regular if er == "-" else er, infinitive, regular, infinitive


def _rows(name: str) -> list[str]:
    lines = (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _split(text: str) -> list[str]:
    return [word.replace("_", " ") for word in text.split()]


def _noun(line: str) -> Noun:
    kind, rest = line.split(": ")
    english, german, *place = map(_split, rest.split(" / "))
    gender, de, plural, *genitive = german
    weak = gender == "w"
    last = genitive[0] if genitive else plural if weak else de
    ways = tuple(place[0]) if place else ("", "", "")
    return Noun(kind, *english, "m" if weak else gender, de, plural, last, weak, ways)


def _verb(line: str) -> Verb:
    frame, rest = line.split(": ")
    english, german, subjects, *objects = map(_split, rest.split(" / "))
    infinitive, du, er, participle, auxiliary = german
    prefix, _, base = infinitive.rpartition("|")
    return Verb(
        frame[0], "s" in frame, "r" in frame, *english, prefix, base, du, er, participle, auxiliary == "s",
        tuple(subjects), tuple(objects[0]) if objects else (),
    )  # fmt: skip


def _adjective(line: str) -> Adjective:
    english, german, kinds = map(_split, line.split(" / "))
    de, _, stem = german[0].partition("|")
    return Adjective(*english, de, stem or de, german[1], tuple(kinds))


@functools.cache
def nouns() -> dict[str, tuple[Noun, ...]]:
    """By kind."""
    every = [_noun(line) for line in _rows("nouns.txt")]
    return {kind: tuple(n for n in every if n.kind == kind) for kind in dict.fromkeys(n.kind for n in every)}


@functools.cache
def noun(english: str) -> Noun:
    return next(n for group in nouns().values() for n in group if n.en == english)


@functools.cache
def verbs() -> dict[str, tuple[Verb, ...]]:
    """By frame."""
    every = [_verb(line) for line in _rows("verbs.txt")]
    return {frame: tuple(v for v in every if v.frame == frame) for frame in "itdglwczx"}


@functools.cache
def verb(english: str, frame: str) -> Verb:
    return next(v for v in verbs()[frame] if v.en == english)


@functools.cache
def adjectives() -> dict[str, tuple[Adjective, ...]]:
    """By kind of noun."""
    every = [_adjective(line) for line in _rows("adjectives.txt")]
    return {kind: tuple(a for a in every if kind in a.kinds) for kind in nouns()}


@functools.cache
def adjective(english: str) -> Adjective:
    return next(a for group in adjectives().values() for a in group if a.en == english)
