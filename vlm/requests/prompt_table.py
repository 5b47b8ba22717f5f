"""Prompt tables: embeddings that a request brings for ids from the vocabulary's size on, given or made of images.

A request's table holds the given rows first, then the features of its images, one after the other. It lives on the
device while the prompt is computed, and no longer: from then on the sequence is its keys and values.
"""

from __future__ import annotations

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


def content_keys(table: PromptTable | None, images: Items[Image]) -> list[bytes]:
    """Returns a key of each row of a request's table, for `block_keys`: what it is made of, and which row of that."""
    if table is None and not images:
        return []
    parts = [*([] if table is None else [(table.key, len(table))]), *((image.key, image.rows) for image in images)]
    return [key + i.to_bytes(4, "little") for key, rows in parts for i in range(rows)]
