"""Prompt tables: embeddings that a request brings for ids from the vocabulary's size on, given or made of images.

A request's table holds the given rows first, then the features of its images, one after the other. It lives on the
device while the prompt is computed, and no longer: from then on the sequence is its keys and values.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlm.engine.prefix import content_key

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Image:
    """One image of a request, ready for the visual encoder."""

    pixel_values: Tensor  # [C, H, W] float32
    key: bytes  # of its content

    @classmethod
    def of(cls, pixel_values: Tensor) -> Image:
        return cls(pixel_values, content_key(pixel_values.contiguous().numpy().tobytes()))


@dataclass(frozen=True, eq=False)
class PromptTable:
    """Rows that a request gives itself (tuned prompts, features made elsewhere)."""

    rows: Tensor  # [n, hidden]
    key: bytes

    @classmethod
    def of(cls, rows: Tensor) -> PromptTable:
        return cls(rows, content_key(rows.float().contiguous().cpu().numpy().tobytes()))

    def __len__(self) -> int:
        return len(self.rows)


def contents(table: PromptTable | None, images: Items[Image], num_features: int) -> list[bytes]:
    """What each row of a request's table is made of, for `block_keys`."""
    given = [] if table is None else [table.key + i.to_bytes(4, "little") for i in range(len(table))]
    return given + [image.key + i.to_bytes(4, "little") for image in images for i in range(num_features)]


def virtual_rows(
    parts: list[tuple[Tensor | None, Items[int]]], vocab_size: int, device: torch.device
) -> tuple[Tensor, ...]:
    """What stands for ids beyond the vocabulary in rows of these (table, tokens), as Virtual has it; () for none."""
    import torch

    if all(table is None for table, _ in parts):
        return ()
    tables, at, begin = [], [], 0
    for table, tokens in parts:
        at += [begin + token - vocab_size if token >= vocab_size else 0 for token in tokens]
        if table is not None:
            tables.append(table)
            begin += len(table)
    return torch.cat(tables), torch.tensor(at, dtype=torch.int32).to(device, non_blocking=True)


class EncoderCache:
    """Features of images by content, on the device; the longest unused give way."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.hits = self.misses = 0
        self._features: OrderedDict[bytes, Tensor] = OrderedDict()

    def features(self, images: Items[Image], encode: Callable[[list[Tensor]], Items[Tensor]]) -> dict[bytes, Tensor]:
        """Of each image by its key; those that are not there are encoded, each once."""
        wanted = {image.key: image for image in images}
        found = {key: self._features[key] for key in wanted if key in self._features}
        missing = [image for key, image in wanted.items() if key not in found]
        self.hits, self.misses = self.hits + len(images) - len(missing), self.misses + len(missing)
        if missing:
            made = encode([image.pixel_values for image in missing])
            found |= {image.key: features for image, features in zip(missing, made, strict=True)}
        for key in wanted:
            self._keep(key, found[key])
        return found

    def clear(self) -> None:
        self._features.clear()

    def _keep(self, key: bytes, features: torch.Tensor) -> None:
        if not self.capacity:
            return
        self._features[key] = features
        self._features.move_to_end(key)
        while len(self._features) > self.capacity:
            self._features.popitem(last=False)
