"""What a traveller says first: set phrases, where something is, what it costs; and noun phrases that stand alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from training.t5.language.clause import BE, finite
from training.t5.language.phrases import NAMES, Shape

if TYPE_CHECKING:
    from training.t5.language.grammar import Grammar

Pair = tuple[str, str]
SET = (
    ("Good morning.", "Guten Morgen."), ("Good evening.", "Guten Abend."), ("Good night.", "Gute Nacht."),
    ("Hello.", "Hallo."), ("Goodbye.", "Auf Wiedersehen."), ("See you tomorrow.", "Bis morgen."),
    ("See you soon.", "Bis bald."), ("Thank you.", "Danke."), ("Thank you very much.", "Vielen Dank."),
    ("Please.", "Bitte."), ("Yes.", "Ja."), ("No.", "Nein."), ("Excuse me.", "Entschuldigung."),
    ("I am sorry.", "Es tut mir leid."), ("How are you?", "Wie geht es dir?"), ("How is he?", "Wie geht es ihm?"),
    ("How are you all?", "Wie geht es euch?"), ("I am fine.", "Es geht mir gut."),
    ("What is your name?", "Wie heißt du?"),
    ("How old are you?", "Wie alt bist du?"), ("What time is it?", "Wie spät ist es?"),
    ("I do not know.", "Ich weiß es nicht."), ("Happy birthday!", "Alles Gute zum Geburtstag!"),
    ("The sun is shining.", "Die Sonne scheint."), ("Welcome!", "Willkommen!"), ("Good luck!", "Viel Glück!"),
)  # fmt: skip
GREETINGS = (("Hello", "Hallo"), ("Good morning", "Guten Morgen"), ("Good evening", "Guten Abend"),
             ("Thank you", "Danke"), ("Good night", "Gute Nacht"))  # fmt: skip


def sentence(grammar: Grammar) -> Pair:
    return grammar.rng.choice((_set, _greeting, _where, _where, _how_much, _alone, _alone, _alone))(grammar)


def _set(grammar: Grammar) -> Pair:
    return grammar.rng.choice(SET)


def _greeting(grammar: Grammar) -> Pair:
    en, de = grammar.rng.choice(GREETINGS)
    name = grammar.rng.choice(NAMES)
    return f"{en}, {name}!", f"{de}, {name}!"


def _where(grammar: Grammar) -> Pair:
    """Where is the train station?"""
    subject = grammar.full(("place", "place", "thing", "person", "animal", "vehicle"))
    while not subject.definite:
        subject = grammar.full(("place", "thing"))
    en, de = BE["present"][subject.person], finite("sein", subject.person)
    return f"Where {en} {subject.en}?", f"Wo {de} {subject.de['nom']}?"


def _how_much(grammar: Grammar) -> Pair:
    noun, plural = grammar.noun(("food", "text", "thing", "clothes", "vehicle", "device")), grammar.rng.random() < 0.4
    determiner = grammar.rng.choice(("the", "this"))
    subject = Shape(noun, determiner, plural, grammar.adjective(noun, 0.3)).phrase()
    en, de = ("do", "kosten") if plural else ("does", "kostet")
    return f"How much {en} {subject.en} cost?", f"Wie viel {de} {subject.de['nom']}?"


def _alone(grammar: Grammar) -> Pair:
    """the old house"""
    kinds = ("person", "animal", "food", "meal", "drink", "text", "thing", "device", "clothes", "vehicle", "place")
    phrase = grammar.full(kinds)
    return phrase.en, phrase.de["nom"]
