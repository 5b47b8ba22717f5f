"""A clause with a verb, in English and German: tense, modality, negation and word order."""

from __future__ import annotations

from dataclasses import dataclass

from training.t5.language.lexicon import PERSONS, Verb
from training.t5.language.phrases import Phrase

Pair = tuple[str, str]
GERMAN = {
    name: forms.split()
    for name, forms in {
        "sein": "bin bist ist sind seid sind", "war": "war warst war waren wart waren",
        "haben": "habe hast hat haben habt haben", "hatte": "hatte hattest hatte hatten hattet hatten",
        "werden": "werde wirst wird werden werdet werden",
        "können": "kann kannst kann können könnt können", "konnte": "konnte konntest konnte konnten konntet konnten",
        "müssen": "muss musst muss müssen müsst müssen", "musste": "musste musstest musste mussten musstet mussten",
        "dürfen": "darf darfst darf dürfen dürft dürfen", "sollte": "sollte solltest sollte sollten solltet sollten",
        "wollen": "will willst will wollen wollt wollen", "wollte": "wollte wolltest wollte wollten wolltet wollten",
    }.items()
}  # fmt: skip
# English auxiliary, negated, German; then those with do: English verb, whether past, German
MODALS = {
    "will": ("will", "will not", "werden"), "can": ("can", "cannot", "können"),
    "could": ("could", "could not", "konnte"), "must": ("must", "must not", "müssen"),
    "may": ("may", "", "dürfen"), "should": ("should", "should not", "sollte"),
}  # fmt: skip
WITH_DO = {
    "want": ("want to", False, "wollen"), "wanted": ("want to", True, "wollte"),
    "have to": ("have to", False, "müssen"), "had to": ("have to", True, "musste"),
}  # fmt: skip
PARTICLES = ("up", "along", "away", "on", "off", "out")
BE = {"present": dict(zip(PERSONS, "am are is are are are".split(), strict=True)),
      "past": dict(zip(PERSONS, "was were was were were were".split(), strict=True))}  # fmt: skip


def finite(name: str, person: str) -> str:
    return GERMAN[name][PERSONS.index(person)]


def do(person: str, past: bool = False) -> str:
    return "did" if past else "does" if person == "3s" else "do"


def join(*parts: str) -> str:
    return " ".join(part for part in parts if part)


@dataclass(frozen=True)
class Clause:
    """`None` and empty pairs are absent."""

    subject: Phrase
    verb: Verb
    tense: str = "present"
    negated: bool = False
    accusative: Phrase | None = None
    dative: Phrase | None = None
    frequency: Pair = ("", "")
    time: Pair = ("", "")
    company: Pair = ("", "")
    place: Pair = ("", "")
    fronted: bool = False  # the time comes first

    # --- English ---
    def english_verb(self, question: bool = False) -> Pair:
        """(auxiliary with its not, the rest of the verb)"""
        verb, person, tense = self.verb, self.subject.person, self.tense
        nots = " not" if self.negated else ""
        if tense == "progressive":
            return BE["present"][person] + nots, verb.english("ing")
        if tense == "perfect":
            return "has" if person == "3s" else "have", f"already {verb.english('participle')}"
        if tense in MODALS:
            return MODALS[tense][1 if self.negated else 0], verb.english("base")
        return self._with_do(question, nots)

    def _with_do(self, question: bool, nots: str) -> Pair:
        verb, person, tense = self.verb, self.subject.person, self.tense
        modal, past, _ = WITH_DO.get(tense, ("", tense == "past", ""))
        base = verb.english("base")
        if self.negated or question:
            return do(person, past) + nots, join(modal, base)
        if modal:
            head, rest = modal.split()
            inflected = {"want": ("want", "wants", "wanted"), "have": ("have", "has", "had")}[head]
            return "", f"{inflected[2 if past else person == '3s']} {rest} {base}"
        return "", verb.english("past" if past else "s" if person == "3s" else "base")

    def _english_rest(self, main: str) -> str:
        """The verb and all after it."""
        objects = [phrase.en_object for phrase in (self.dative, self.accusative) if phrase]
        head, _, particle = main.rpartition(" ")
        if self.accusative and self.accusative.pronoun and particle in PARTICLES:  # picks him up
            main, objects = head, [*objects, particle]
        return join(main, *objects, self.place[0], self.company[0], "" if self.fronted else self.time[0])

    def english(self) -> str:
        auxiliary, main = self.english_verb()
        front = self.time[0] if self.fronted else ""
        return join(front, self.subject.en, auxiliary, self.frequency[0], self._english_rest(main))

    def english_question(self, word: str = "") -> str:
        auxiliary, main = self.english_verb(question=True)
        return join(word, auxiliary, self.subject.en, self.frequency[0], self._english_rest(main))

    def english_infinitive(self) -> str:
        return self._english_rest(self.verb.english("base"))

    # --- German ---
    def german_verb(self) -> tuple[str, str]:
        """(finite verb, what stands at the end)"""
        verb, person, tense = self.verb, self.subject.person, self.tense
        if tense in ("present", "progressive"):
            return verb.german(person), verb.prefix
        if tense == "past" and verb.en == "have":
            return finite("hatte", person), ""
        if tense in ("past", "perfect"):
            return finite("sein" if verb.sein else "haben", person), verb.de_participle
        modal = (MODALS.get(tense) or WITH_DO[tense])[2]
        if tense == "must" and self.negated:  # must not: darf nicht; need not: muss nicht
            modal = "dürfen"
        return finite(modal, person), verb.infinitive

    def german_middle(self) -> str:
        """All between the subject and the end. Objects go before the time when "nicht" follows, else after it."""
        objects = [(p, p.de[case]) for p, case in ((self.accusative, "acc"), (self.dative, "dat")) if p]
        pronouns = [text for phrase, text in objects if phrase.pronoun]
        # the dative stands before the accusative
        definite = [text for phrase, text in reversed(objects) if phrase.definite and not phrase.pronoun]
        others = [text for phrase, text in reversed(objects) if not phrase.definite]
        full = [text for phrase, text in reversed(objects) if not phrase.pronoun]
        time = join("" if self.fronted else self.time[1], self.frequency[1])
        if self.tense == "progressive":
            time = join("gerade", time)
        if self.negated and not self.has_kein:
            middle = [*definite, *others, time, "nicht"]
        elif self.tense == "perfect":
            middle = [*definite, time, "schon", *others]
        else:
            middle = [time, *full]
        return join(*pronouns, *middle, self.company[1], self.place[1])

    @property
    def has_kein(self) -> bool:
        return any(p is not None and p.kind == "negative" for p in (self.accusative, self.dative))

    def german(self) -> str:
        """Verb second."""
        verb, end = self.german_verb()
        subject = self.subject.de["nom"]
        if self.fronted:
            return join(self.time[1], verb, subject, self.german_middle(), end)
        return join(subject, verb, self.german_middle(), end)

    def german_question(self, word: str = "") -> str:
        """Also after a subordinate clause: the verb before its subject."""
        verb, end = self.german_verb()
        return join(word, verb, self.subject.de["nom"], self.german_middle(), end)

    def german_subordinate(self, subject: str | None = None) -> str:
        """Verb last; a prefix is not separated there."""
        verb, end = self.german_verb()
        close = end + verb if end and end == self.verb.prefix else join(end, verb)
        return join(self.subject.de["nom"] if subject is None else subject, self.german_middle(), close)

    def german_zu(self) -> str:
        """das Buch zu kaufen"""
        return join(self.german_middle(), self.verb.zu)
