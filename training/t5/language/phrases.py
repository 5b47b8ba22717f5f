"""Noun phrases in both languages: pronouns, names, and nouns with determiner, adjective and genitive."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from training.t5.language import numbers
from training.t5.language.lexicon import Adjective, Noun, adjectives, nouns

CASES = ("nom", "acc", "dat", "gen")
GENDERS = ("m", "f", "n", "p")  # p: plural
THE = {"nom": "der die das die", "acc": "den die das die", "dat": "dem der dem den", "gen": "des der des der"}
DIES = {"nom": "er e es e", "acc": "en e es e", "dat": "em er em en", "gen": "es er es er"}
EIN = {"nom": "_ e _ e", "acc": "en e _ e", "dat": "em er em en", "gen": "es er es er"}
WEAK = {"nom": "e e e en", "acc": "en e e en", "dat": "en en en en", "gen": "en en en en"}
MIXED = {"nom": "er e es en", "acc": "en e es en", "dat": "en en en en", "gen": "en en en en"}
STRONG = {"nom": "er e es e", "acc": "en e es e", "dat": "em er em en", "gen": "en er en er"}

# German stem, its endings, the adjective's endings, English singular and plural
DETERMINERS = {
    "the": ("", THE, WEAK, "the", "the"),
    "this": ("dies", DIES, WEAK, "this", "these"),
    "every": ("jed", DIES, WEAK, "every", ""),
    "which": ("welch", DIES, WEAK, "which", "which"),
    "all": ("all", DIES, WEAK, "", "all"),
    "a": ("ein", EIN, MIXED, "a", ""),
    "no": ("kein", EIN, MIXED, "a", ""),
    "my": ("mein", EIN, MIXED, "my", "my"),
    "your": ("dein", EIN, MIXED, "your", "your"),
    "his": ("sein", EIN, MIXED, "his", "his"),
    "her": ("ihr", EIN, MIXED, "her", "her"),
    "our": ("unser", EIN, MIXED, "our", "our"),
    "many": ("viel", DIES, STRONG, "", "many"),
    "some": ("einig", DIES, STRONG, "", "some"),
    "": ("", dict.fromkeys(CASES, "_ _ _ _"), STRONG, "", ""),
}
POSSESSIVES = ("my", "your", "his", "her", "our")
PRONOUNS = {  # English subject and object; German nominative, accusative, dative
    "1s": ("I", "me", "ich", "mich", "mir"),
    "2s": ("you", "you", "du", "dich", "dir"),
    "3m": ("he", "him", "er", "ihn", "ihm"),
    "3f": ("she", "her", "sie", "", "ihr"),
    "1p": ("we", "us", "wir", "uns", "uns"),
    "2p": ("you all", "you all", "ihr", "euch", "euch"),
    "3p": ("they", "them", "sie", "", "ihnen"),
}  # the accusative sie, her or them, is left out
NAMES = ("Anna Peter Maria Paul Laura David Julia Martin Lena Daniel Clara Robert Emma Michael Sarah Simon Eva Jan "
         "Nina Oliver Sophie Stefan Hannah Walter").split()  # a woman's, a man's, in turn  # fmt: skip


@dataclass(frozen=True)
class Phrase:
    en: str
    en_object: str
    de: dict[str, str]
    person: str  # of PERSONS
    kind: str  # pronoun, name, definite, indefinite, bare, counted, negative
    gender: str = "m"
    shape: Shape | None = None

    @property
    def pronoun(self) -> bool:
        return self.kind == "pronoun"

    @property
    def definite(self) -> bool:
        return self.kind in ("pronoun", "name", "definite")


def is_novel(*words: str) -> bool:
    """A thirtieth of the combinations, held out of training."""
    return zlib.crc32(" ".join(words).encode()) % 30 == 0


def ending(table: dict[str, str], case: str, gender: str) -> str:
    return table[case].split()[GENDERS.index(gender)].replace("_", "")


def article(word: str) -> str:
    return "an" if word[0] in "aeiou" and not word.startswith(("university", "euro")) else "a"


def pronoun(key: str) -> Phrase:
    subject, other, *german = PRONOUNS[key]
    person = "3s" if key in ("3m", "3f") else key
    return Phrase(subject, other, dict(zip(CASES, german, strict=False)), person, "pronoun", key[1])


def name(word: str) -> Phrase:
    return Phrase(word, word, dict.fromkeys(("nom", "acc", "dat"), word), "3s", "name")


@dataclass(frozen=True)
class Shape:
    """What a noun phrase is made of."""

    noun: Noun
    determiner: str = "the"  # of DETERMINERS
    plural: bool = False
    adjective: Adjective | None = None
    of: Phrase | None = None  # genitive
    count: int = 0
    owner: str = ""  # Anna's

    def phrase(self) -> Phrase:
        gender = "p" if self.plural else self.noun.gender
        en = self._english()
        de = {case: self._german(case, gender) for case in CASES}
        person = "3p" if self.plural else "3s"
        return Phrase(en, en, de, person, self._kind(), gender, self)

    def _kind(self) -> str:
        if self.count:
            return "counted"
        if self.determiner == "no":
            return "negative"
        if self.owner or self.determiner in ("the", "this", "which", *POSSESSIVES):
            return "definite"
        if self.determiner in ("every", "all", "many", "some"):
            return "counted"
        return "indefinite" if self.determiner else "bare"

    def _english(self) -> str:
        noun = self.noun.en_plural if self.plural else self.noun.en
        words = [self.adjective.en, noun] if self.adjective else [noun]
        if self.owner:
            words.insert(0, f"{self.owner}'s")
        elif self.count:
            words.insert(0, numbers.english(self.count))
        elif self.determiner:
            word = DETERMINERS[self.determiner][4 if self.plural else 3]
            bare = word == "a" and self.noun.mass
            words.insert(0, "" if bare else article(words[0]) if word == "a" else word)
        return " ".join([w for w in words if w] + (["of", self.of.en] if self.of else []))

    def _german(self, case: str, gender: str) -> str:
        stem, table, inflection, *_ = DETERMINERS["" if self.owner or self.count else self.determiner]
        determiner = stem + ending(table, case, gender)
        if self.owner or self.count:
            determiner = f"{self.owner}s" if self.owner else numbers.german(self.count, "ein")
        words = [determiner] if determiner else []
        if self.adjective:
            words.append(self.adjective.stem + ending(inflection, case, gender))
        words.append(self.noun.german(case, self.plural))
        return " ".join(words + ([self.of.de["gen"]] if self.of else []))


class Phrases:
    """Draws noun phrases. `novel`: a combination of words came up that training never shows."""

    def __init__(self, rng: random.Random):
        self.rng, self.novel = rng, False

    def noun(self, kinds: Sequence[str]) -> Noun:
        return self.rng.choice(nouns()[self.rng.choice(kinds)])

    def subject(self, kinds: Sequence[str]) -> Phrase:
        chance = self.rng.random()
        if "person" in kinds and chance < 0.35:
            return pronoun(self.rng.choice(tuple(PRONOUNS)))
        if "person" in kinds and chance < 0.48:
            return name(self.rng.choice(NAMES))
        return self.full(kinds)

    def object(self, kinds: Sequence[str], case: str) -> Phrase:
        chance = self.rng.random()
        if "person" in kinds and chance < 0.2:
            able = [key for key, forms in PRONOUNS.items() if case == "dat" or forms[3]]
            return pronoun(self.rng.choice(able))
        if "person" in kinds and chance < 0.3:
            return name(self.rng.choice(NAMES))
        return self.full(kinds)

    def full(self, kinds: Sequence[str], genitive: bool = True) -> Phrase:
        """A noun with all that may stand around it."""
        rng, noun = self.rng, self.noun(kinds)
        adjective = self.adjective(noun, 0.35)
        if noun.mass:
            return Shape(noun, rng.choice(("", "", "", "the", "this", "my")), adjective=adjective).phrase()
        plural, chance = rng.random() < 0.35, rng.random()
        if plural and chance < 0.3:
            return Shape(noun, "", True, adjective, count=self.count()).phrase()
        if not plural and chance < 0.06:
            return Shape(noun, "", adjective=adjective, owner=rng.choice(NAMES)).phrase()
        singular = ("the", "the", "the", "the", "a", "a", "a", "a", "this", "every", *POSSESSIVES)
        choices = ("the", "the", "the", "", "", "these", "all", "many", "some", *POSSESSIVES) if plural else singular
        determiner = rng.choice(choices).replace("these", "this")
        of = None
        if genitive and determiner == "the" and rng.random() < 0.2:
            of = self.owner()
        return Shape(noun, determiner, plural, adjective, of).phrase()

    def owner(self) -> Phrase:
        """Its genitive is used."""
        noun, plural = self.noun(("person",)), self.rng.random() < 0.25
        determiner = self.rng.choice(("the", "the", "this", *POSSESSIVES))
        return Shape(noun, determiner, plural, self.adjective(noun, 0.2)).phrase()

    def adjective(self, noun: Noun, share: float) -> Adjective | None:
        if not adjectives()[noun.kind] or self.rng.random() >= share:
            return None
        adjective = self.rng.choice(adjectives()[noun.kind])
        self.combine(adjective.en, noun)
        return adjective

    def combine(self, word: str, noun: Noun | None) -> None:
        if noun is not None and is_novel(word, noun.en):
            self.novel = True

    def count(self) -> int:
        return self.rng.randint(2, 12) if self.rng.random() < 0.85 else self.rng.randint(13, 999)
