"""Seeded prose: words in sentences, sentences in paragraphs."""

from __future__ import annotations

from random import Random

WORDS = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from which or had an they"
    " you were their one all we can her has there been if more when will would who so no out up into some than them"
    " time two may then do first any my now such like our over man me even most made after also did many must before"
    " back through years where much your way well down should because each just those people how too little state good"
    " very make world still own see men work long get here between both life being under never day same another know"
    " while last might us great old year off come since against go came right used take three house water measure"
    " paper margin column figure section method result energy theory example surface pressure constant harbour engine"
    " letter record library district parliament company contract payment balance interest capital season weather river"
    " mountain temperature experiment distribution equation condition relation difference observation government"
).split()
SENTENCE = (6, 18)  # words


class Prose:
    """Draws text; the same seed gives the same."""

    def __init__(self, seed: str):
        self.random = Random(seed)

    def words(self, count: int) -> str:
        return " ".join(self.random.choices(WORDS, k=count))

    def sentence(self) -> str:
        words = self.words(self.random.randint(*SENTENCE))
        return f"{words[0].upper()}{words[1:]}."

    def paragraph(self, sentences: int) -> str:
        return " ".join(self.sentence() for _ in range(sentences))

    def heading(self) -> str:
        return self.words(self.random.randint(2, 5)).title()

    def amount(self) -> str:
        """Returns a number as tables have it: `1,234.56`."""
        return f"{self.random.randrange(10**6) / 100:,.2f}"
