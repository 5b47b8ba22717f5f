"""Prompt tables: embeddings that a request brings for ids from the vocabulary's size on, given or made of images.

A request's table holds the given rows first, then the features of its images, one after the other. It lives on the
device while the prompt is computed, and no longer: from then on the sequence is its keys and values.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlm.requests.content_key import content_key

if TYPE_CHECKING:
    from torch import Tensor

    from vlm.requests.image import Image


@dataclass(frozen=True, eq=False)
class PromptTable:
    """Rows that a request gives itself (tuned prompts, features made elsewhere)."""

    rows: Tensor  # [n, hidden]
    key: bytes

    @classmethod
    def from_rows(cls, rows: Tensor) -> PromptTable:
        return cls(rows, content_key(rows.float().contiguous().cpu().numpy().tobytes()))

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class Contents:
    """What the rows of a request's table are made of, one content after the other."""

    keys: tuple[bytes, ...] = ()  # of each,
    begins: tuple[int, ...] = ()  # … its first row
    num_rows: int = 0

    @classmethod
    def of(cls, table: PromptTable | None, images: Items[Image]) -> Contents:
        """Returns those of a table's own rows and of images."""
        if table is None and not images:
            return NO_CONTENTS
        parts = [*([] if table is None else [(table.key, len(table))]), *((image.key, image.rows) for image in images)]
        ends = list(itertools.accumulate(rows for _, rows in parts))
        return cls(tuple(key for key, _ in parts), (0, *ends[:-1]), ends[-1])

    def __len__(self) -> int:
        return self.num_rows


NO_CONTENTS = Contents()
