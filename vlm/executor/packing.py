"""Packs ragged inputs into rows, on the host: no padding but up to the sizes that graphs were captured for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from vlm.ops import prefill_attention
from vlm.ops.packed_attention import tiles_of
from vlm.requests.sequence import PrefillChunk, Sequence

T = TypeVar("T")


class PackedInputs(NamedTuple):
    """The rows of a pass on the device, int32."""

    token_ids: Tensor  # [R]
    positions: Tensor  # [R]
    slots: Tensor  # [R]
    tiles: Tensor  # [T, 3] of texts, [T, 4] of parts of prompts

    @classmethod
    def from_host(
        cls, device: torch.device, token_ids: list, positions: list, slots: list, tiles: list
    ) -> PackedInputs:
        """Copies lists to the device without waiting for it."""
        put = lambda part: torch.tensor(part, dtype=torch.int32).to(device, non_blocking=True)  # noqa: E731
        return cls(put(token_ids), put(positions), put(slots), put(tiles))


@dataclass(frozen=True)
class PackedTexts:
    """Token sequences one after the other, on the host."""

    token_ids: list[int]
    positions: list[int]
    slots: list[int]
    tiles: list[tuple[int, int, int]]  # of the rows that CUDA takes; the CPU takes whole sequences
    lengths: list[int]

    @classmethod
    def from_texts(cls, texts: Items[Items[int]], slots: Items[int]) -> PackedTexts:
        lengths = [len(text) for text in texts]
        return cls(
            [token for text in texts for token in text],
            [position for n in lengths for position in range(n)],
            [slot for slot, n in zip(slots, lengths, strict=True) for _ in range(n)],
            tiles_of(lengths),
            lengths,
        )

    @property
    def rows(self) -> int:
        return len(self.token_ids)

    def padded(self, padding_slot: int) -> PackedTexts:
        """Returns the texts with rows of the padding slot and empty tiles up to the next size of a graph."""
        extra, tiles = graph_rows(self.rows) - self.rows, graph_tiles(len(self.tiles)) - len(self.tiles)
        zeros, padding, empty = [0] * extra, [padding_slot] * extra, [(0, 0, 0)] * tiles
        return PackedTexts(
            self.token_ids + zeros, self.positions + zeros, self.slots + padding, self.tiles + empty, self.lengths
        )

    def to_device(self, device: torch.device) -> PackedInputs:
        """Returns the rows as tensors."""
        tiles = self.tiles if device.type == "cuda" else tiles_of(self.lengths, rows=None)
        return PackedInputs.from_host(device, self.token_ids, self.positions, self.slots, tiles)


def graph_rows(rows: int) -> int:
    """Returns the next number of rows that graphs are captured for: four to each power of two."""
    step = max(16, 1 << max(0, (rows - 1).bit_length() - 3))
    return -(-rows // step) * step


def graph_tiles(tiles: int) -> int:
    return power_of_two(tiles)


@dataclass(frozen=True)
class PackedChunks:
    """Parts of prompts one after the other, on the host."""

    tokens: list[int]
    positions: list[int]
    slots: list[int]
    chunks: list[tuple[int, int, int]]  # slot, first position, rows

    @classmethod
    def from_prefills(cls, prefills: list[tuple[Sequence, PrefillChunk]]) -> PackedChunks:
        chunks = [(s.slots[chunk.beam], chunk.start, chunk.end - chunk.start) for s, chunk in prefills]
        return cls(
            [token for s, chunk in prefills for token in s.tokens[chunk.start : chunk.end]],
            [start + i for _, start, rows in chunks for i in range(rows)],
            [slot for slot, _, rows in chunks for _ in range(rows)],
            chunks,
        )

    @property
    def rows(self) -> int:
        return len(self.tokens)

    def to_device(self, device: torch.device, padding_slot: int | None = None) -> PackedInputs:
        """Returns the rows as tensors; with the padding slot, padded to a graph's size."""
        tiles = prefill_attention.tiles_of(self.chunks, **({} if device.type == "cuda" else {"rows": None}))
        if padding_slot is None:
            return PackedInputs.from_host(device, self.tokens, self.positions, self.slots, tiles)
        extra = graph_rows(self.rows) - self.rows
        zeros, padding = [0] * extra, [padding_slot] * extra
        empty = [(0, 0, 0, 0)] * (graph_tiles(len(tiles)) - len(tiles))
        return PackedInputs.from_host(
            device, self.tokens + zeros, self.positions + zeros, self.slots + padding, tiles + empty
        )


def batched(items: list, size: int) -> list[list]:
    return [items[i : i + size] for i in range(0, len(items), size)]


def batched_by_tokens(items: list[T], most: int, rows: Callable[[T], int]) -> Iterator[list[T]]:
    """Yields groups of at most `most` rows, an item that has more of them alone."""
    group, num_rows = [], 0
    for item in items:
        if group and num_rows + rows(item) > most:
            yield group
            group, num_rows = [], 0
        group.append(item)
        num_rows += rows(item)
    if group:
        yield group


def batched_by_kinds(items: Iterable[T], most: int, kinds: Callable[[T], Set[object]]) -> Iterator[list[T]]:
    """Yields groups that have at most `most` kinds together, an item of more of them alone."""
    group, known = [], set[object]()
    for item in items:
        if group and len(known | kinds(item)) > most:
            yield group
            group, known = [], set()
        group.append(item)
        known |= kinds(item)
    if group:
        yield group


def packed(counts: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """Turns (slot, n) pairs into the slot and the position of each of their rows, [sum of n] int32 each, on the host"""
    slots = torch.cat([torch.full((n,), slot, dtype=torch.int32) for slot, n in counts])
    positions = torch.cat([torch.arange(n, dtype=torch.int32) for _, n in counts])
    return slots, positions


def power_of_two(least: int) -> int:
    """Returns the smallest power of two that is not below `least`, which is above 0."""
    return 1 << (least - 1).bit_length()


def bucket_of(rows: int, limit: int) -> int:
    """Returns the batch size a graph is captured for: powers of two up to 16, then multiples of 16."""
    if rows <= 16:
        return min(power_of_two(rows), max(limit, 1))
    return min(-(-rows // 16) * 16, limit)
