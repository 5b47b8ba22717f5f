"""Draws single clauses: a verb with what it takes, and adverbials that suit its tense."""

from __future__ import annotations

import dataclasses

from training.t5.language import adverbials
from training.t5.language.adverbials import Adverbials
from training.t5.language.clause import MODALS, WITH_DO, Clause
from training.t5.language.lexicon import Verb, verbs
from training.t5.language.phrases import Phrase

Pair = tuple[str, str]
FRAMES = "ttttttttiiiddgglwwx"
IT = Phrase("it", "it", {"nom": "es"}, "3s", "pronoun")
STATED = ("present",) * 6 + ("past",) * 6 + ("progressive", "progressive", "perfect", "will", "will", "can", "could",
          "must", "may", "should", "want", "wanted", "had to")  # fmt: skip
DENIED = ("present",) * 4 + ("past",) * 4 + ("progressive", "will", "can", "could", "must", "should", "want", "wanted",
          "have to", "had to")  # fmt: skip
ADVERBIAL_TENSES = ("present", "past", *MODALS, *WITH_DO)


class Clauses(Adverbials):
    """Draws them."""

    def clause(self, tenses: tuple[str, ...] = STATED, negated: bool = False, **changes) -> Clause:
        """A clause whose verb allows the tense."""
        verb = changes.pop("verb", None) or self.rng.choice(verbs()[self.rng.choice(FRAMES)])
        subject = changes.pop("subject", None) or self.subject_of(verb)
        tense = self.rng.choice([t for t in tenses if self.allowed(verb, t)] or ["present"])
        clause = Clause(subject, verb, tense, **self.objects(verb))
        clause = dataclasses.replace(clause, **(self.adverbials(verb, tense, negated) | changes))
        return self.negative(clause) if negated else clause

    @staticmethod
    def allowed(verb: Verb, tense: str) -> bool:
        if tense == "progressive":
            return not verb.no_progressive
        if verb.frame == "x" and (tense in WITH_DO or tense in ("may", "should", "must", "perfect")):
            return False
        return not (verb.no_past and tense == "past") and not (verb.en == "have" and tense == "perfect")

    def subject_of(self, verb: Verb) -> Phrase:
        return IT if verb.frame == "x" else self.subject(verb.subjects)

    def objects(self, verb: Verb) -> dict[str, Phrase]:
        found = {}
        if verb.frame in "tg":
            found["accusative"] = self.object(verb.objects, "acc")
            while verb.frame == "g" and found["accusative"].pronoun:
                found["accusative"] = self.object(verb.objects, "acc")
            shape = found["accusative"].shape
            self.combine(verb.en, shape.noun if shape else None)
        if verb.frame == "g":
            found["dative"] = self.object(("person",), "dat")
        elif verb.frame == "d":
            found["dative"] = self.object(verb.objects, "dat")
        return found

    def adverbials(self, verb: Verb, tense: str, negated: bool) -> dict[str, Pair]:
        rng, found = self.rng, {}
        if verb.frame == "l":
            found["place"] = self.place()
        elif verb.frame == "w":
            found["place"] = self.way()
        elif rng.random() < 0.25 and not (negated and verb.frame != "i"):
            found["place"] = self.place()
        if verb.frame != "x" and rng.random() < 0.12:
            found["company"] = self.company()
        if tense in ADVERBIAL_TENSES:
            if tense in ("present", "past", "can") and not negated and rng.random() < 0.15:
                found["frequency"] = rng.choice(adverbials.FREQUENCIES)
            elif rng.random() < 0.4:
                found["time"] = self.time(tense, negated)
        return found

    def negative(self, clause: Clause) -> Clause:
        """Negated by kein or nicht; another clause where neither sits well."""
        last = "accusative" if clause.accusative else "dative"
        phrase: Phrase | None = getattr(clause, last)
        if phrase is None or phrase.definite:
            others = clause.dative if last == "accusative" else None
            ok = others is None or others.definite
            return dataclasses.replace(clause, negated=True) if ok else self.clause(DENIED, negated=True)
        if phrase.kind in ("indefinite", "bare") and phrase.shape:
            none = dataclasses.replace(phrase.shape, determiner="no").phrase()
            return dataclasses.replace(clause, negated=True, **{last: none})
        return self.clause(DENIED, negated=True)

    def maybe_negated(self, share: float) -> Clause:
        negated = self.rng.random() < share
        return self.clause(DENIED if negated else STATED, negated)
