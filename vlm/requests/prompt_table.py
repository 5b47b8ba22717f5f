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


@dataclass(frozen=True, eq=False)
class Image:
    """One image of a request, ready for the visual encoder."""

    pixel_values: Tensor  # [C, H, W] float32
    key: bytes  # of its content

    @classmethod
    def from_pixels(cls, pixel_values: Tensor) -> Image:
        return cls(pixel_values, content_key(pixel_values.contiguous().numpy().tobytes()))


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


def contents(table: PromptTable | None, images: Items[Image], num_features: int) -> list[bytes]:
    """What each row of a request's table is made of, for `block_keys`."""
    given = [] if table is None else [table.key + i.to_bytes(4, "little") for i in range(len(table))]
    return given + [image.key + i.to_bytes(4, "little") for image in images for i in range(num_features)]
