"""Images that are told of in words: what a text says of their tiles, with a placeholder for the rows of each."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass

from vlm.processing.chat.conversation import PLACEHOLDER
from vlm.processing.text.tokenization import Piece

Grid = tuple[int, ...] | None


@dataclass(frozen=True)
class ImageTexts:
    """The texts of a prompt's images, in order."""

    texts: tuple[str, ...]

    @classmethod
    def from_grids(cls, image_text: Callable[[Grid], str], grids: Items[Grid]) -> ImageTexts:
        return cls(tuple(map(image_text, grids)))

    def put_into(self, text: str) -> str:
        """Returns a text with those of the images in place of its placeholders; one without any as it is."""
        first, *others = text.split(PLACEHOLDER)
        return first + "".join(map("".join, zip(self.texts, others, strict=False)))

    def rows_by_tile(self, image_rows: Items[int]) -> list[int]:
        """Returns the rows of each tile, of the rows of each image."""
        counts = [text.count(PLACEHOLDER) for text in self.texts]
        return [rows // count for rows, count in zip(image_rows, counts, strict=True) for _ in range(count)]

    def without_places(self, pieces: list[Piece], text: str) -> list[Piece]:
        """Returns the tokens of what was put into `text`, where those of images are nowhere: they are not cut off."""
        first, *others = text.split(PLACEHOLDER)
        lengths = [len(first), *(len(each) for pair in zip(self.texts, others, strict=False) for each in pair)]
        ends = list(itertools.accumulate(lengths))
        spans = list(itertools.pairwise(ends))[::2]
        return [Piece(p.id) if any(a <= p.start and p.end <= b for a, b in spans) else p for p in pieces]
