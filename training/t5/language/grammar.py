"""Sentences: draws clauses that make sense, by and large, and joins them; English and German in parallel.

Where a language has several ways to say it, one is chosen by rule, so that translation is a function both ways: "you"
is du and "you all" ihr, there is no formal Sie; the simple past is the Perfekt (of to have and to be, the Präteritum),
the progressive has gerade, the present perfect "already" and schon; "must not" is darf nicht, "does not have to" muss
nicht; sie stands for she or they, never for her or them as an object.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

from training.t5.language import copula, phrasebook
from training.t5.language.clause import Clause, join
from training.t5.language.clauses import Clauses
from training.t5.language.lexicon import verbs
from training.t5.language.phrases import THE, Phrase, Shape, ending

Pair = tuple[str, str]
WHO = Phrase("who", "who", {"nom": "wer"}, "3s", "pronoun")
ASKED = ("present",) * 4 + ("past",) * 4 + ("progressive", "perfect", "will", "can", "could", "may", "should", "want",
         "wanted", "have to", "had to")  # fmt: skip


def finished(en: str, de: str, mark: str = ".") -> Pair:
    """With capitals and a stop. A relative clause's comma goes when the sentence ends there."""
    return _closed(en, mark), _closed(de, mark)


def _closed(text: str, mark: str) -> str:
    text = text[0].upper() + text[1:].rstrip(",")
    return text if mark == "." and text.endswith(".") else text + mark  # at 3:15 p.m.


class Grammar(Clauses):
    """Draws sentences."""

    def sentence(self) -> Pair:
        self.novel = False
        kinds: tuple[tuple[Callable[[], Pair], int], ...] = (
            (self.statement, 40), (self.question, 12), (self.asking, 12), (self.compound, 14), (self.reported, 8),
            (self.infinitive, 6), (self.relative, 6), (lambda: copula.sentence(self), 18),
            (lambda: phrasebook.sentence(self), 8),
        )  # fmt: skip
        return self.rng.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]()

    def statement(self) -> Pair:
        clause = self.maybe_negated(0.25)
        if clause.time[0] and self.rng.random() < 0.4:
            clause = dataclasses.replace(clause, fronted=True)
        return finished(clause.english(), clause.german())

    def question(self) -> Pair:
        clause = self.clause(ASKED)
        return finished(clause.english_question(), clause.german_question(), "?")

    def asking(self) -> Pair:
        """With a question word."""
        form = self.rng.randrange(6)
        if form == 0:
            verb = self.rng.choice(verbs()[self.rng.choice("ttid")])
            clause = self.clause(ASKED, subject=WHO, verb=verb)
            statement = dataclasses.replace(clause, tense="must") if clause.tense == "have to" else clause
            return finished(statement.english(), statement.german(), "?")
        if form == 1:
            return self.asking_place()
        if form < 4:
            word = self.rng.choice((("when", "wann"), ("why", "warum"), ("how often", "wie oft")))
            clause = self.clause(tuple(t for t in ASKED if t != "perfect"), time=("", ""), frequency=("", ""))
            return finished(clause.english_question(word[0]), clause.german_question(word[1]), "?")
        return self.asking_object()

    def asking_place(self) -> Pair:
        frame = self.rng.choice("tilw")
        verb = self.rng.choice(verbs()[frame])
        clause = self.clause(ASKED, verb=verb, place=("", ""))
        return finished(
            clause.english_question("where"), clause.german_question("wohin" if frame == "w" else "wo"), "?"
        )

    def asking_object(self) -> Pair:
        """What, whom, which book, how many books."""
        frame = self.rng.choice("tttd")
        clause = self.clause(ASKED, verb=self.rng.choice(verbs()[frame]))
        role, case = ("dative", "dat") if frame == "d" else ("accusative", "acc")
        asked: Phrase = getattr(clause, role)
        bare = dataclasses.replace(clause, **{role: None})
        word = self._question_word(asked, case)
        return finished(bare.english_question(word[0]), bare.german_question(word[1]), "?")

    def _question_word(self, asked: Phrase, case: str) -> Pair:
        shape = asked.shape
        if shape and not shape.noun.mass and self.rng.random() < 0.5:
            if shape.plural and self.rng.random() < 0.5:
                many = Shape(shape.noun, "many", True).phrase()
                return f"how {many.en}", f"wie {many.de[case]}"
            which = Shape(shape.noun, "which", shape.plural, shape.adjective).phrase()
            return which.en, which.de[case]
        person = case == "dat" or shape is None or shape.noun.kind in ("person", "animal")  # wem is who alone
        return ("who" if person else "what"), {"acc": "wen" if person else "was", "dat": "wem"}[case]

    def compound(self) -> Pair:
        """Two clauses joined."""
        form = self.rng.randrange(5)
        first, second = self.maybe_negated(0.15), self.maybe_negated(0.2)
        if form == 0:
            return finished(f"{first.english()}, and {second.english()}", f"{first.german()} und {second.german()}")
        if form == 1:
            return finished(f"{first.english()}, but {second.english()}", f"{first.german()}, aber {second.german()}")
        if form == 2:
            return finished(
                f"{first.english()} because {second.english()}", f"{first.german()}, weil {second.german_subordinate()}"
            )
        tenses = self.rng.choice((("past", "past"), ("present", "present"), ("present", "will")))
        first, second = (self.clause((tense,), negated=self.rng.random() < 0.2) for tense in tenses)
        en, de = self.rng.choice((("if", "wenn"), ("although", "obwohl"), ("before", "bevor"), ("while", "während")))
        return finished(
            f"{en} {first.english()}, {second.english()}",
            f"{de} {first.german_subordinate()}, {second.german_question()}",
        )

    def reported(self) -> Pair:
        """Says that .."""
        verb = self.rng.choice(verbs()["c"])
        main = Clause(self.subject(("person",)), verb, self.rng.choice(("present", "past")))
        inner = self.maybe_negated(0.2)
        return finished(
            f"{main.english()} that {inner.english()}", f"{main.german()}, dass {inner.german_subordinate()}"
        )

    def infinitive(self) -> Pair:
        """Tries to .., goes there to .."""
        inner = self.clause(("present",), time=("", ""), frequency=("", ""), verb=self.rng.choice(verbs()["t"]))
        english = join("to", inner.english_infinitive())
        if self.rng.random() < 0.5:
            verb = self.rng.choice(verbs()["z"])
            main = Clause(self.subject(("person",)), verb, self.rng.choice(("present", "past")))
            return finished(f"{main.english()} {english}", f"{main.german()}, {inner.german_zu()}")
        verb = self.rng.choice(verbs()["w"])
        main = Clause(self.subject(("person",)), verb, self.rng.choice(("present", "past", "will")), place=self.way())
        return finished(f"{main.english()} {english}", f"{main.german()}, um {inner.german_zu()}")

    def relative(self) -> Pair:
        """The man who .. sleeps."""
        head = self.full(("person",), genitive=False)
        while head.kind != "definite":
            head = self.full(("person",), genitive=False)
        subject = self.with_relative(head)
        verb = self.rng.choice(verbs()[self.rng.choice("tid")])
        clause = self.clause(subject=subject, verb=verb)
        return finished(clause.english(), clause.german())

    def with_relative(self, head: Phrase) -> Phrase:
        """Without adverbials in it: they could belong to either clause."""
        verb = self.rng.choice(verbs()[self.rng.choice("ttid")])
        none = dict.fromkeys(("time", "place", "company", "frequency"), ("", ""))
        if head.gender == "m" and self.rng.random() < 0.3:  # den tells apart who does it; die and das would not
            verb = self.rng.choice([v for v in verbs()["t"] if "person" in v.objects])
            inner = self.clause(("present", "past"), verb=verb, accusative=None, **none)
            german = inner.german_subordinate(f"den {inner.subject.de['nom']}")
            return self._extended(head, f"that {inner.english()}", german)
        inner = self.clause(("present", "past", "will", "can"), subject=head, verb=verb, **none)
        who = dataclasses.replace(inner, subject=dataclasses.replace(head, en="who"))
        return self._extended(head, who.english(), inner.german_subordinate(ending(THE, "nom", head.gender)))

    @staticmethod
    def _extended(head: Phrase, english: str, german: str) -> Phrase:
        return dataclasses.replace(head, en=f"{head.en} {english}", de={"nom": f"{head.de['nom']}, {german},"})


def pair(rng: random.Random) -> tuple[str, str, bool]:
    """English, German, and whether a combination of words in it is held out."""
    grammar = Grammar(rng)
    return (*grammar.sentence(), grammar.novel)
