"""Notices of a few sentences and the one line that says what matters: who, what, when, where, how much.

The facts stand in any order, each said in one of several ways, among sentences that do not matter and hold times,
amounts and places of their own. The summary is a function of the facts. Names of people, firms, places and things are
drawn from lists or made up, so they have to be copied.
"""

from __future__ import annotations

import datetime
import random
import string
from collections.abc import Callable
from dataclasses import dataclass, field

from training.t5.language import times

FIRST = ("Anna Peter Maria Paul Laura David Julia Martin Lena Daniel Clara Robert Emma Michael Sarah Simon Eva Oliver "
         "Grace Henry Alice Victor Nora Felix").split()  # fmt: skip
LAST = ("Miller Fischer Weber Baker Wagner Clark Hoffmann Reed Keller Stone Brandt Lewis Vogel Turner Kraus Hill "
        "Lindner Ward Seidel Price Adler Wood Busch Grant").split()  # fmt: skip
MEETINGS = ("budget review", "team meeting", "project kickoff", "design workshop", "safety training", "staff meeting",
            "sales call", "planning session", "board meeting", "job interview", "quarterly review",
            "parents' evening")  # fmt: skip
EVENTS = ("summer concert", "book sale", "chess tournament", "open day", "charity run", "film night", "flower show",
          "science fair", "poetry reading", "flea market", "cooking class", "winter ball")  # fmt: skip
PLACES = ("town hall", "library", "main hall", "community center", "city park", "old theater", "museum", "school gym",
          "harbor", "market square", "sports center", "art gallery")  # fmt: skip
SERVICES = ("water", "power", "internet", "heating", "telephone", "gas", "hot water", "elevator")
GOODS = ("desk", "printer", "sofa", "washing machine", "bookshelf", "bicycle", "laptop", "refrigerator", "lamp",
         "office chair", "mattress", "camera")  # fmt: skip
CAUSES = ("maintenance work", "a storm", "construction work", "a broken pipe", "a strike", "a technical fault",
          "heavy snow", "an inspection")  # fmt: skip
STREETS = ("Oak", "Mill", "Station", "Church", "River", "Garden", "King", "Bridge", "Lake", "Forest", "North", "Market")
TOWNS = ("Berlin", "Vienna", "London", "Prague", "Hamburg", "Zurich", "Paris", "Rome", "Madrid", "Oslo", "Dublin",
         "Warsaw", "Geneva", "Lisbon")  # fmt: skip
DISTRACTORS = (
    "Please keep this message for your records.", "We apologize for any inconvenience.", "Thank you for your patience.",
    "The cafeteria is open until {time}.", "Our office closes at {time} as usual.", "Coffee and cake will be served.",
    "If you have questions, call {name} at extension {number}.", "Parking is available on {street} Street for {price}.",
    "The newsletter will appear on {weekday}.", "Last year, more than {number} people took part.",
    "Please do not reply to this message.", "The lost umbrella from {weekday} is still at the front desk.",
    "{name} is on vacation until {date}.", "The next fire drill is on {weekday} at {time}.",
    "Room {number} is being painted this week.", "A copy of this notice hangs next to the {place}.",
    "Lunch costs {price} for visitors.", "All other services are not affected.", "Children under {small} are welcome.",
    "For the latest news, see our website.", "The weather forecast for {town} is good.",
    "{name} has written the minutes of the last session.", "Please bring your badge.", "Dogs must wait outside.",
    "Tickets for the bus to {town} cost {price}.", "The printer on floor {small} is out of order.",
)  # fmt: skip
SYLLABLES = ("ba be bo da del do fa fen ga go ha hel ka kor la len lo ma mer mi na nor o pa ra ri ro sa sel ta ten to "
             "va vi zan").split()  # fmt: skip
GREETINGS = ("Dear all,", "Hello everyone,", "Attention please:", "Notice:", "Dear customer,", "Good news:",
             "Reminder:")  # fmt: skip


@dataclass
class Facts:
    """Draws what a notice tells."""

    rng: random.Random
    any_letters: bool = False  # made-up names of any letters, not of SYLLABLES
    used: set[str] = field(default_factory=set)
    minute: int = 0
    day_of_year: int = 1

    def fresh(self, draw: Callable[[], str]) -> str:
        """Not twice the same in a notice."""
        text = draw()
        while text in self.used:
            text = draw()
        self.used.add(text)
        return text

    def made_up(self) -> str:
        if self.any_letters:
            return "".join(self.rng.choice(string.ascii_lowercase) for _ in range(self.rng.randint(4, 8))).capitalize()
        return "".join(self.rng.choice(SYLLABLES) for _ in range(self.rng.randint(2, 3))).capitalize()

    def name(self) -> str:
        last = self.rng.choice(LAST) if self.rng.random() < 0.6 else self.made_up()
        return f"{self.rng.choice(FIRST)} {last}"

    def firm(self) -> str:
        return f"{self.made_up()} {self.rng.choice(('Ltd.', 'GmbH', 'Inc.', 'Services', 'Energy', 'Books'))}"

    def town(self) -> str:
        return self.rng.choice(TOWNS) if self.rng.random() < 0.6 else self.made_up()

    def street(self) -> str:
        return self.rng.choice(STREETS) if self.rng.random() < 0.6 else self.made_up()

    def time(self) -> str:
        self.minute = self.rng.randrange(360, 1200, 5)
        return times.clock(self.minute)[0]

    def later(self) -> str:
        """A time of the same day after the last one."""
        self.minute = self.rng.randrange(self.minute + 5, 1440, 5)
        return times.clock(self.minute)[0]

    def weekday(self) -> str:
        return self.rng.choice(times.WEEKDAYS)[0]

    def date(self) -> str:
        self.day_of_year = self.rng.randint(1, 330)
        return self._date()

    def later_date(self) -> str:
        self.day_of_year = self.rng.randint(self.day_of_year + 1, 365)
        return self._date()

    def _date(self) -> str:
        return times.on_date(datetime.date.fromordinal(self.day_of_year), 2)[0].removeprefix("on ")

    def day(self) -> str:
        return self.weekday() if self.rng.random() < 0.5 else f"{self.weekday()}, {self.date()}"

    def price(self) -> str:
        cents = self.rng.randint(1, 10 ** self.rng.randint(2, 4)) * self.rng.choice((5, 10, 99, 100))
        return times.price(cents, self.rng.choice("€$"))[0]

    def wage(self) -> str:
        return times.price(self.rng.randint(300, 2500) * 100, self.rng.choice("€$"))[0]

    def room(self) -> str:
        return f"{self.rng.choice('ABCDEFGH')}{self.rng.randint(1, 499)}"

    def number(self) -> str:
        return str(self.rng.randint(100, 9999))

    def code(self) -> str:
        return f"{self.rng.choice('ABCDEFGHKLMNPRSTVWXZ')}{self.rng.choice('ABCDEFGHKLMNPRSTVWXZ')}-{self.number()}"

    def small(self) -> str:
        return str(self.rng.randint(2, 16))

    def pick(self, values: tuple[str, ...]) -> str:
        return self.rng.choice(values)


@dataclass(frozen=True)
class Kind:
    """Slots and how to draw them; sentences for each part, one of which is said; the summary's line."""

    slots: dict[str, Callable[[Facts], str]]
    parts: tuple[tuple[str, ...], ...]
    summary: str


def notice(
    rng: random.Random,
    kinds: dict[str, Kind],
    distractors: tuple[int, ...] = (0, 1, 1, 2, 2, 3),
    any_letters: bool = False,
) -> tuple[str, str, str]:
    """kind, text, summary; so many sentences do not matter"""
    facts = Facts(rng, any_letters)
    name = rng.choice(tuple(kinds))
    kind = kinds[name]
    values = {slot: facts.fresh(lambda draw=draw: draw(facts)) for slot, draw in kind.slots.items()}
    first, *others = [rng.choice(ways).format(**values) for ways in kind.parts]
    sentences = others + [distractor(facts, text) for text in rng.sample(DISTRACTORS, rng.choice(distractors))]
    rng.shuffle(sentences)
    sentences.insert(0 if rng.random() < 0.7 else rng.randint(0, len(sentences)), first)
    if rng.random() < 0.4:
        sentences.insert(0, rng.choice(GREETINGS))
    separator = "\n" if rng.random() < 0.25 else " "
    # a stop after 3:15 p.m. is not written twice
    return name, separator.join(sentences).replace("..", "."), kind.summary.format(**values).replace("..", ".")


def distractor(facts: Facts, text: str) -> str:
    slots = ("time", "name", "number", "street", "price", "weekday", "date", "place", "town", "small")
    draw = {"place": lambda: facts.pick(PLACES)} | {slot: getattr(facts, slot) for slot in slots if slot != "place"}
    return text.format(**{slot: facts.fresh(draw[slot]) for slot in slots if f"{{{slot}}}" in text})
