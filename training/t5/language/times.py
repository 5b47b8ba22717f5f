"""Dates, times of day and prices, in English (United States) and German."""

from __future__ import annotations

import datetime
import random

from training.t5.language import numbers

Pair = tuple[str, str]  # English, German
MONTHS = tuple(
    zip(
        "January February March April May June July August September October November December".split(),
        "Januar Februar März April Mai Juni Juli August September Oktober November Dezember".split(),
        strict=True,
    )
)
WEEKDAYS = tuple(
    zip(
        "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split(),
        "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag".split(),
        strict=True,
    )
)
DAY_PARTS = (("in the morning", "morgens"), ("in the afternoon", "nachmittags"), ("in the evening", "abends"),
             ("at night", "nachts"))  # fmt: skip
EN_ORDINALS = ("first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth "
               "fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth").split()  # fmt: skip
DE_ORDINALS = {1: "erst", 3: "dritt", 7: "siebt", 8: "acht"}


# --- dates ---
def draw_date(rng: random.Random) -> datetime.date:
    return datetime.date(1900, 1, 1) + datetime.timedelta(days=rng.randrange(73049))  # to the end of 2099


def date(day: datetime.date, weekday: bool = False) -> Pair:
    """March 3, 2024 / 3. März 2024"""
    en, de = MONTHS[day.month - 1]
    name = WEEKDAYS[day.weekday()]
    before = (f"{name[0]}, ", f"{name[1]}, ") if weekday else ("", "")
    return f"{before[0]}{en} {day.day}, {day.year}", f"{before[1]}{day.day}. {de} {day.year}"


def on_date(day: datetime.date, form: int) -> Pair:
    """As part of a sentence: with year and weekday, with weekday, or the day alone."""
    (en, de), name = MONTHS[day.month - 1], WEEKDAYS[day.weekday()]
    if form == 0:
        return f"on {name[0]}, {en} {day.day}, {day.year}", f"am {name[1]}, dem {day.day}. {de} {day.year}"
    if form == 1:
        return f"on {name[0]}, {en} {day.day}", f"am {name[1]}, dem {day.day}. {de}"
    return f"on {en} {day.day}", f"am {day.day}. {de}"


def english_ordinal(n: int) -> str:
    """Up to 99."""
    if n < 20:
        return EN_ORDINALS[n - 1]
    tens, one = divmod(n, 10)
    name = numbers.TENS["en"][tens]
    return f"{name}-{EN_ORDINALS[one - 1]}" if one else f"{name[:-1]}ieth"


def german_ordinal(n: int) -> str:
    """Its stem: dritt-, zwanzigst-."""
    return DE_ORDINALS.get(n) or numbers.german(n) + ("t" if n < 20 else "st")


def english_year(year: int) -> str:
    """nineteen eighty-four, nineteen oh five, two thousand seven, twenty seventeen"""
    century, rest = divmod(year, 100)
    if 2000 <= year < 2010:
        return numbers.english(year)
    tail = f"oh {numbers.english(rest)}" if 0 < rest < 10 else numbers.english(rest) if rest else "hundred"
    return f"{numbers.english(century)} {tail}"


def german_year(year: int) -> str:
    """neunzehnhundertvierundachtzig, zweitausendsieben"""
    century, rest = divmod(year, 100)
    if century == 20:
        return "zweitausend" + (numbers.german(rest) if rest else "")
    return numbers.german(century) + "hundert" + (numbers.german(rest) if rest else "")


def date_pair(rng: random.Random) -> Pair:
    day, form = draw_date(rng), rng.randrange(7)
    en, de = MONTHS[day.month - 1]
    if form < 2:
        return date(day, weekday=form == 1)
    if form < 4:
        return on_date(day, form - 2)
    if form == 4:
        return f"{day.month:02d}/{day.day:02d}/{day.year}", f"{day.day:02d}.{day.month:02d}.{day.year}"
    if form == 5:
        return f"the {english_ordinal(day.day)} of {en}, {english_year(day.year)}", (
            f"der {german_ordinal(day.day)}e {de} {german_year(day.year)}"
        )
    return f"in {en} of {day.year}", f"im {de} {day.year}"


# --- times of day ---
def clock(minute: int) -> Pair:
    """3:15 p.m. / 15:15 Uhr; `minute` counts from midnight."""
    hour, rest = divmod(minute, 60)
    return f"{(hour - 1) % 12 + 1}:{rest:02d} {'a.m.' if hour < 12 else 'p.m.'}", f"{hour:02d}:{rest:02d} Uhr"


def spoken(hour: int, minute: int) -> Pair:
    """`hour` 1 to 12: ten to four / zehn vor vier, twenty-five past three / fünf vor halb vier."""
    after = hour % 12 + 1
    (en, de), (en_next, de_next) = ((numbers.english(h), numbers.german(h)) for h in (hour, after))
    if minute == 0:
        return f"{en} o'clock", f"{numbers.german(hour, 'ein')} Uhr"
    named = {
        15: (f"a quarter past {en}", f"Viertel nach {de}"),
        25: (f"twenty-five past {en}", f"fünf vor halb {de_next}"),
        30: (f"half past {en}", f"halb {de_next}"),
        35: (f"twenty-five to {en_next}", f"fünf nach halb {de_next}"),
        45: (f"a quarter to {en_next}", f"Viertel vor {de_next}"),
    }
    if minute in named:
        return named[minute]
    count, (en_hour, de_hour) = (minute, (en, de)) if minute < 30 else (60 - minute, (en_next, de_next))
    word = ("past", "nach") if minute < 30 else ("to", "vor")
    unit = ("", "") if count % 5 == 0 else (" minute", " Minute") if count == 1 else (" minutes", " Minuten")
    how_many = numbers.german(count) if count > 1 else "eine"
    return f"{numbers.english(count)}{unit[0]} {word[0]} {en_hour}", f"{how_many}{unit[1]} {word[1]} {de_hour}"


def time_pair(rng: random.Random) -> Pair:
    form, minute = rng.randrange(5), rng.randrange(1440)
    if form == 0:
        return clock(minute)
    if form == 1:
        begin, end = clock(minute), clock(rng.randrange(1440))
        return f"from {begin[0]} to {end[0]}", f"von {begin[1]} bis {end[1]}"
    if form == 2:
        day, (en, de) = rng.choice(WEEKDAYS), clock(minute)
        return f"on {day[0]} at {en}", f"am {day[1]} um {de}"
    en, de = spoken(rng.randint(1, 12), minute % 60)
    before = ("at ", "um ") if rng.random() < 0.4 else ("", "")
    part = rng.choice(DAY_PARTS) if form == 3 else None
    after = (f" {part[0]}", f" {part[1]}") if part else ("", "")
    return f"{before[0]}{en}{after[0]}", f"{before[1]}{de}{after[1]}"


# --- prices ---
def price(cents: int, sign: str) -> Pair:
    """€1,234.50 / 1.234,50 €"""
    whole, rest = divmod(cents, 100)
    return f"{sign}{whole:,}.{rest:02d}", f"{numbers.german_digits(whole)},{rest:02d} {sign}"


def draw_cents(rng: random.Random, digits: int = 7) -> int:
    cents = rng.randrange(1, 10 ** rng.randint(2, digits))
    return cents // 100 * 100 + rng.choice((0, 50, 99, cents % 100))


def price_words(cents: int, unit: Pair, in_words: bool) -> Pair:
    """twelve euros and fifty cents / zwölf Euro und fünfzig Cent; or the same with 12 and 50"""
    parts = []
    for count, (en, de) in ((cents // 100, unit), (cents % 100, ("cent", "Cent"))):
        if count:
            number = (numbers.english(count), numbers.german(count, "ein"))
            digits = (numbers.english_digits(count), numbers.german_digits(count))
            shown = number if in_words else digits
            parts.append((f"{shown[0]} {en}{'s' if count > 1 else ''}", f"{shown[1]} {de}"))
    return " and ".join(p[0] for p in parts), " und ".join(p[1] for p in parts)


def price_pair(rng: random.Random) -> Pair:
    form = rng.randrange(3)
    if form == 0:
        return price(draw_cents(rng, 9), rng.choice("€$"))
    unit = rng.choice((("euro", "Euro"), ("dollar", "Dollar")))
    return price_words(max(1, draw_cents(rng)), unit, in_words=form == 1)
