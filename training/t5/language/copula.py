"""Sentences with to be, and those about prices, ages, dates and names."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from training.t5.language import numbers, times
from training.t5.language.clause import BE, finite, join
from training.t5.language.lexicon import Adjective, adjectives, noun
from training.t5.language.phrases import NAMES, POSSESSIVES, Phrase, Shape, name, pronoun

if TYPE_CHECKING:
    from training.t5.language.grammar import Grammar

Pair = tuple[str, str]
KINDS = ("person", "person", "animal", "text", "thing", "device", "vehicle", "place", "clothes", "food")
DEGREES = (("very", "sehr"), ("too", "zu"), ("often", "oft"), ("still", "noch"), ("always", "immer"))
PRICED = ("food", "text", "thing", "device", "clothes", "vehicle")


def sentence(grammar: Grammar) -> Pair:
    forms = (described, described, described, compared, placed, placed, exists, costs, aged, dated, called)
    return grammar.rng.choice(forms)(grammar)


def _finished(en: str, de: str, question: bool = False) -> Pair:
    mark = "?" if question else "."
    return en[0].upper() + en[1:] + ("" if en.endswith(".") else mark), de[0].upper() + de[1:] + mark


def _subject(grammar: Grammar) -> tuple[Phrase, Adjective]:
    """A subject and what can be said of it."""
    rng = grammar.rng
    kind = rng.choice(KINDS)
    phrase = grammar.subject((kind,))
    while phrase.kind == "bare" or (phrase.shape and phrase.shape.noun.mass):
        phrase = grammar.subject((kind,))
    adjective = rng.choice(adjectives()[kind])
    grammar.combine(adjective.en, phrase.shape.noun if phrase.shape else None)
    return phrase, adjective


def _to_be(grammar: Grammar, subject: Phrase, rest: Pair) -> Pair:
    """is, is not, was, was not; a statement or a question"""
    tense = grammar.rng.choice(("present", "present", "past"))
    verb = BE[tense][subject.person], finite("sein" if tense == "present" else "war", subject.person)
    chance = grammar.rng.random()
    if chance < 0.2:
        return _finished(join(verb[0], subject.en, rest[0]), join(verb[1], subject.de["nom"], rest[1]), question=True)
    nots = ("not", "nicht") if chance < 0.4 and subject.kind != "counted" else ("", "")
    return _finished(join(subject.en, verb[0], nots[0], rest[0]), join(subject.de["nom"], verb[1], nots[1], rest[1]))


def described(grammar: Grammar) -> Pair:
    subject, adjective = _subject(grammar)
    degree = grammar.rng.choice((*DEGREES, ("", ""), ("", ""), ("", "")))
    return _to_be(grammar, subject, (join(degree[0], adjective.en), join(degree[1], adjective.de)))


def compared(grammar: Grammar) -> Pair:
    """older than, as old as"""
    subject, adjective = _subject(grammar)
    other = grammar.full((subject.shape.noun.kind if subject.shape else "person",))
    if other.shape and other.shape.noun.mass:
        return described(grammar)
    if grammar.rng.random() < 0.5:
        comparison = f"{adjective.en_comparative} than", f"{adjective.de_comparative} als"
    else:
        comparison = f"as {adjective.en} as", f"so {adjective.de} wie"
    return _to_be(grammar, subject, (f"{comparison[0]} {other.en}", f"{comparison[1]} {other.de['nom']}"))


def placed(grammar: Grammar) -> Pair:
    """The key is on the table."""
    rng = grammar.rng
    if rng.random() < 0.5:
        return _to_be(grammar, grammar.subject(("person", "animal", "vehicle")), grammar.place())
    return _to_be(grammar, grammar.full(("thing", "text", "animal", "clothes")), grammar.spot())


def exists(grammar: Grammar) -> Pair:
    """There is a dog in the park."""
    rng = grammar.rng
    noun, form = grammar.noun(("animal", "thing", "vehicle", "text", "place")), rng.randrange(3)
    shape = Shape(noun, ("a", "no", "")[form], form == 2, grammar.adjective(noun, 0.3))
    if form == 2:
        shape = dataclasses.replace(shape, count=grammar.count())
    phrase, place = shape.phrase(), grammar.spot() if rng.random() < 0.3 else grammar.place()
    there = ("there is", "there is not", "there are")[form]
    return _finished(join(there, phrase.en, place[0]), join("es gibt", phrase.de["acc"], place[1]))


def costs(grammar: Grammar) -> Pair:
    rng = grammar.rng
    noun, plural = grammar.noun(PRICED), rng.random() < 0.3
    subject = Shape(noun, rng.choice(("the", "this", "the", "my")), plural, grammar.adjective(noun, 0.3)).phrase()
    cents = times.draw_cents(rng, 6)
    amount = times.price(cents, rng.choice("€$"))
    if rng.random() < 0.4:
        unit = rng.choice((("euro", "Euro"), ("dollar", "Dollar")))
        amount = times.price_words(cents + 200, unit, rng.random() < 0.5)  # never "einen Euro"
    verb = ("cost", "kosten") if plural else ("costs", "kostet")
    return _finished(join(subject.en, verb[0], amount[0]), join(subject.de["nom"], verb[1], amount[1]))


def aged(grammar: Grammar) -> Pair:
    rng = grammar.rng
    subject, age = grammar.subject(("person", "animal")), rng.randint(2, 99)
    while subject.kind == "bare":
        subject = grammar.subject(("person", "animal"))
    number = (str(age), str(age)) if rng.random() < 0.5 else (numbers.english(age), numbers.german(age))
    return _to_be(grammar, subject, (f"{number[0]} years old", f"{number[1]} Jahre alt"))


def dated(grammar: Grammar) -> Pair:
    """Today is .., it is half past three."""
    rng = grammar.rng
    if rng.random() < 0.5:
        clock = times.spoken(rng.randint(1, 12), rng.randrange(60))
        clock = clock if rng.random() < 0.6 else times.clock(rng.randrange(1440))
        return _finished(f"it is {clock[0]}", f"es ist {clock[1]}")
    day = times.draw_date(rng)
    en, de = times.date(day, weekday=True)
    de = de.replace(", ", ", der ")
    if rng.random() < 0.5:
        return _finished(f"today is {en}", f"heute ist {de}")
    weekday = rng.choice(times.WEEKDAYS)
    return _finished(f"tomorrow is {weekday[0]}", f"morgen ist {weekday[1]}")


def called(grammar: Grammar) -> Pair:
    """My name is Anna. Peter is our neighbor."""
    rng = grammar.rng
    female = rng.random() < 0.5
    word = rng.choice(NAMES[0 if female else 1 :: 2])
    if rng.random() < 0.5:
        owners = (("my", "ich heiße"), ("your", "du heißt"), ("her", "sie heißt") if female else ("his", "er heißt"))
        owner, verb = rng.choice(owners)
        return _finished(f"{owner} name is {word}", f"{verb} {word}")
    # a woman would be Freundin, Nachbarin
    kin = ("sister", "mother", "aunt", "daughter") if female else ("friend", "brother", "neighbor", "teacher", "uncle")
    other = pronoun("3f" if female else "3m") if rng.random() < 0.3 else name(word)
    phrase = Shape(noun(rng.choice(kin)), rng.choice(POSSESSIVES)).phrase()
    return _to_be(grammar, other, (phrase.en, phrase.de["nom"]))
