"""Times, places and company as parts of a sentence: pairs of English and German."""

from __future__ import annotations

import datetime

from training.t5.language import numbers, times
from training.t5.language.lexicon import Noun
from training.t5.language.phrases import NAMES, POSSESSIVES, PRONOUNS, Phrase, Phrases, Shape, name, pronoun

Pair = tuple[str, str]
FREQUENCIES = (("often", "oft"), ("always", "immer"), ("sometimes", "manchmal"), ("never", "nie"), ("rarely", "selten"),
               ("usually", "meistens"))  # fmt: skip
PRESENT = (("now", "jetzt"), ("today", "heute"), ("every day", "jeden Tag"), ("every week", "jede Woche"),
           ("every year", "jedes Jahr"))  # fmt: skip
PAST = (("yesterday", "gestern"), ("last week", "letzte Woche"), ("last year", "letztes Jahr"), ("today", "heute"),
        ("last month", "letzten Monat"), ("yesterday evening", "gestern Abend"),
        ("this morning", "heute Morgen"))  # fmt: skip
FUTURE = (("tomorrow", "morgen"), ("next week", "nächste Woche"), ("next year", "nächstes Jahr"), ("soon", "bald"),
          ("next month", "nächsten Monat"), ("tomorrow evening", "morgen Abend"), ("today", "heute"))  # fmt: skip
ANY = (("in the morning", "am Morgen"), ("in the evening", "am Abend"), ("at night", "in der Nacht"),
       ("in the afternoon", "am Nachmittag"), ("on the weekend", "am Wochenende"), ("in spring", "im Frühling"),
       ("in summer", "im Sommer"), ("in fall", "im Herbst"), ("in winter", "im Winter"), ("at noon", "am Mittag"),
       ("at midnight", "um Mitternacht"))  # fmt: skip
SPANS = (("day", "Tagen"), ("week", "Wochen"), ("month", "Monaten"), ("year", "Jahren"))
TOWNS = (("Berlin", "Berlin"), ("Munich", "München"), ("Vienna", "Wien"), ("Cologne", "Köln"), ("Hamburg", "Hamburg"),
         ("London", "London"), ("Paris", "Paris"), ("Rome", "Rom"), ("Zurich", "Zürich"), ("Geneva", "Genf"),
         ("Prague", "Prag"), ("Warsaw", "Warschau"), ("Lisbon", "Lissabon"), ("Brussels", "Brüssel"),
         ("Nuremberg", "Nürnberg"), ("Germany", "Deutschland"), ("Austria", "Österreich"), ("Italy", "Italien"),
         ("France", "Frankreich"), ("Spain", "Spanien"), ("Poland", "Polen"))  # fmt: skip
SPOTS = (("on", "auf"), ("under", "unter"), ("behind", "hinter"), ("next to", "neben"), ("in front of", "vor"))
CONTRACTED = {"in dem": "im", "an dem": "am", "zu dem": "zum", "zu der": "zur", "in das": "ins", "an das": "ans",
              "von dem": "vom", "bei dem": "beim"}  # fmt: skip


def with_preposition(preposition: str, phrase: str) -> str:
    """in, dem Park -> im Park"""
    text = f"{preposition} {phrase}"
    for long, short in CONTRACTED.items():
        if text.startswith(long + " "):
            return short + text[len(long) :]
    return text


class Adverbials(Phrases):
    """Draws them."""

    def time(self, tense: str, negated: bool = False) -> Pair:
        en, de = self._time(tense)
        while negated and en.startswith("every"):  # German says "nicht jeden Tag", another order
            en, de = self._time(tense)
        return en, de

    def _time(self, tense: str) -> Pair:
        rng, chance = self.rng, self.rng.random()
        if chance < 0.4:
            past, present = tense in ("past", "could", "had to", "wanted"), tense == "present"
            return rng.choice(PAST if past else PRESENT if present else FUTURE)
        if chance < 0.6:
            return rng.choice(ANY)
        if chance < 0.75 and tense in ("past", "will"):
            return self._distance(tense)
        return self._calendar()

    def _distance(self, tense: str) -> Pair:
        en, de = self.rng.choice(SPANS)
        count = self.rng.randint(2, 20)
        number = numbers.english(count), numbers.german(count)
        if tense == "past":
            return f"{number[0]} {en}s ago", f"vor {number[1]} {de}"
        return f"in {number[0]} {en}s", f"in {number[1]} {de}"

    def _calendar(self) -> Pair:
        rng, form = self.rng, self.rng.randrange(6)
        day = times.WEEKDAYS[rng.randrange(7)]
        if form == 0:
            return f"on {day[0]}", f"am {day[1]}"
        if form == 1:
            month = rng.choice(times.MONTHS)
            return f"in {month[0]}", f"im {month[1]}"
        if form == 2:
            date = datetime.date(2023, 1, 1) + datetime.timedelta(rng.randrange(3650))
            return times.on_date(date, rng.randrange(1, 3))
        clock = times.clock(rng.randrange(0, 1440, 5))
        if form == 3:
            return f"on {day[0]} at {clock[0]}", f"am {day[1]} um {clock[1]}"
        if form == 4:
            clock = times.spoken(rng.randint(1, 12), rng.randrange(0, 60, 5))
        return f"at {clock[0]}", f"um {clock[1]}"

    def place(self) -> Pair:
        chance = self.rng.random()
        if chance < 0.1:
            return self.rng.choice((("at home", "zu Hause"), ("here", "hier"), ("there", "dort")))
        if chance < 0.3:
            en, de = self.rng.choice(TOWNS)
            return f"in {en}", f"in {de}"
        phrase, noun = self._place_phrase()
        return f"{noun.place[0]} {phrase.en}", with_preposition(noun.place[1], phrase.de["dat"])

    def way(self) -> Pair:
        chance = self.rng.random()
        if chance < 0.08:
            return "home", "nach Hause"
        if chance < 0.25:
            en, de = self.rng.choice(TOWNS)
            return f"to {en}", f"nach {de}"
        phrase, noun = self._place_phrase()
        case = "dat" if noun.place[2] == "zu" else "acc"
        return f"to {phrase.en}", with_preposition(noun.place[2], phrase.de[case])

    def _place_phrase(self) -> tuple[Phrase, Noun]:
        noun = self.noun(("place",))
        determiner = self.rng.choice(("the", "the", "the", "the", "a", "this", "our"))
        return Shape(noun, determiner, adjective=self.adjective(noun, 0.25)).phrase(), noun

    def spot(self) -> Pair:
        """On, under, behind something."""
        en, de = self.rng.choice(SPOTS)
        noun = self.noun(("thing",) if en in ("on", "under") else ("thing", "place", "vehicle"))
        phrase = Shape(noun, self.rng.choice(("the", "the", "a", *POSSESSIVES)), adjective=self.adjective(noun, 0.3))
        return f"{en} {phrase.phrase().en}", f"{de} {phrase.phrase().de['dat']}"

    def company(self) -> Pair:
        en, de, case = self.rng.choice((("with", "mit", "dat"), ("for", "für", "acc"), ("without", "ohne", "acc")))
        phrase = self._companion(case)
        return f"{en} {phrase.en_object}", f"{de} {phrase.de[case]}"

    def _companion(self, case: str) -> Phrase:
        rng, chance = self.rng, self.rng.random()
        if chance < 0.25:
            return pronoun(rng.choice([key for key, forms in PRONOUNS.items() if case == "dat" or forms[3]]))
        if chance < 0.45:
            return name(rng.choice(NAMES))
        noun = self.noun(("person", "person", "animal"))
        determiner = rng.choice(("the", "a", *POSSESSIVES)) if (one := rng.random() < 0.7) else rng.choice(POSSESSIVES)
        return Shape(noun, determiner, not one, self.adjective(noun, 0.25)).phrase()
