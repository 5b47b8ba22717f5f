"""Numbers up to 999,999,999: in words and in digits, in English and in German."""

from __future__ import annotations

import random

SMALL = {
    "en": "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen".split(),
    "de": "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn "
    "siebzehn achtzehn neunzehn".split(),
}
TENS = {
    "en": "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split(),
    "de": "_ _ zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split(),
}
LIMIT = 1_000_000_000


def english(n: int) -> str:
    """American: no "and"."""
    parts = []
    for size, name in ((1_000_000, "million"), (1000, "thousand"), (1, "")):
        group, n = divmod(n, size)
        if group:
            parts.append(f"{_english_hundreds(group)} {name}".strip())
    return " ".join(parts) or "zero"


def _english_hundreds(n: int) -> str:
    hundreds, rest = divmod(n, 100)
    parts = [f"{SMALL['en'][hundreds]} hundred"] if hundreds else []
    if rest:
        tens, one = divmod(rest, 10)
        parts.append(SMALL["en"][rest] if rest < 20 else TENS["en"][tens] + (f"-{SMALL['en'][one]}" if one else ""))
    return " ".join(parts)


def german(n: int, one: str = "eins") -> str:
    """`one`: how a last 1 is written; "ein" before a masculine noun (einundzwanzig, but einhundertein Euro)."""
    millions, rest = divmod(n, 1_000_000)
    thousands, rest = divmod(rest, 1000)
    parts = [f"{_german_hundreds(millions, 'eine')} Million{'en' if millions > 1 else ''}"] if millions else []
    below = _german_hundreds(thousands, "ein") + "tausend" if thousands else ""
    below += _german_hundreds(rest, one) if rest else ""
    return " ".join([*parts, below] if below else parts) or "null"


def _german_hundreds(n: int, one: str) -> str:
    hundreds, rest = divmod(n, 100)
    text = (("ein" if hundreds == 1 else SMALL["de"][hundreds]) + "hundert") if hundreds else ""
    tens, unit = divmod(rest, 10)
    if rest == 1:
        return text + one
    if rest < 20:
        return text + (SMALL["de"][rest] if rest else "")
    return text + (("ein" if unit == 1 else SMALL["de"][unit]) + "und" if unit else "") + TENS["de"][tens]


def english_digits(n: int) -> str:
    return f"{n:,}"


def german_digits(n: int) -> str:
    return f"{n:,}".replace(",", ".")


def draw(rng: random.Random, limit: int = LIMIT) -> int:
    """Every number of digits alike; round numbers more often than chance has them."""
    digits = rng.randint(1, len(str(limit - 1)))
    n = rng.randrange(10 ** (digits - 1), 10**digits) if digits > 1 else rng.randrange(10)
    if rng.random() < 0.25:
        n = int("".join(d if rng.random() < 0.4 else "0" for d in str(n)))
    return n % limit


def pair(rng: random.Random, n: int) -> tuple[str, str, str, str]:
    """(English source, its German target, German source, its English target); the forms that ask for words or digits
    answer in the other language, so there the second pair is not the first one reversed."""

    words, zahl = english(n), german(n)
    form = rng.random()
    if form < 0.4:
        return words, zahl, zahl, words
    if form < 0.65:
        return f"{english_digits(n)} in words", zahl, f"{german_digits(n)} in Worten", words
    if form < 0.9:
        return f"{words} in digits", german_digits(n), f"{zahl} in Ziffern", english_digits(n)
    return english_digits(n), german_digits(n), german_digits(n), english_digits(n)
