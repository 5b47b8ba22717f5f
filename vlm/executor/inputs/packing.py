"""Packs ragged inputs into rows, on the host: no padding but up to the sizes that graphs were captured for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Set
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vlm.executor.inputs.upload import pack, view
from vlm.ops.attention import prefill_attention
from vlm.ops.attention.packed_attention import tiles_of
from vlm.requests.sequence import PrefillChunk, Sequence

T = TypeVar("T")
Array = npt.NDArray[np.int32]


class PackedInputs(NamedTuple):
    """The rows of a pass on the device, int32."""

    token_ids: Tensor  # [R]
    positions: Tensor  # [R]: of each row in its sequence
    slots: Tensor  # [R]
    axes: Tensor  # [axes, R]: positions of several axes; [0, R] where they have one
    tiles: Tensor  # [T, 3] of texts, [T, 4] of parts of prompts
    ends: Tensor  # [n, 2]: rows of the last tokens of sequences, and their slots


class HostInputs(NamedTuple):
    """The same on the host, as one tensor: one copy takes them to the device, or to where a graph reads them."""

    whole: Tensor  # bytes
    begins: list[int]  # of each part
    shapes: list[tuple[int, ...]]

    @classmethod
    def from_arrays(cls, rows: Array, tiles: Array, ends: Array, device: torch.device) -> HostInputs:
        """Packs rows [3 + axes, R], tiles and ends for a device."""
        parts = [*rows[:3], rows[3:], tiles, ends]
        return cls(*pack(parts, device), [part.shape for part in parts])

    @property
    def lengths(self) -> list[int]:
        """Returns the length of each part, of which the first is that of the rows."""
        return [shape[0] for shape in self.shapes]

    def parts_of(self, whole: Tensor) -> PackedInputs:
        """Returns the parts of a copy."""
        layout = zip(self.begins, self.shapes, strict=True)
        return PackedInputs(*(view(whole, begin, shape, torch.int32) for begin, shape in layout))

    def to_device(self, device: torch.device) -> PackedInputs:
        """Copies them, without waiting for the device."""
        return self.parts_of(self.whole.to(device, non_blocking=True))


def _rows_of(token_ids: npt.ArrayLike, chunks: Items[tuple[int, int, int]]) -> Array:
    """Returns token ids, which are given [R], positions and slots [3, R] of chunks: slot, first position, rows of
    each."""
    slots, firsts, counts = np.array(chunks, np.int32).reshape(-1, 3).T
    ends = counts.cumsum()
    rows = np.empty((3, counts.sum()), np.int32)
    rows[0] = token_ids
    rows[1] = np.arange(rows.shape[1]) + np.repeat(firsts + counts - ends, counts)
    rows[2] = np.repeat(slots, counts)
    return rows


def _padded_rows(rows: Array, padding_slot: int) -> Array:
    """Returns the rows and ones of the padding slot up to the next size of a graph."""
    extra = graph_rows(rows.shape[1]) - rows.shape[1]
    padding = np.zeros((len(rows), extra), np.int32)
    padding[2] = padding_slot
    return np.concatenate([rows, padding], 1)


def _tiles(tiles: list[Any], width: int, *, padded: bool) -> Array:
    """Returns the tiles [T, width], with empty ones up to the next size of a graph where they are `padded`."""
    result = np.zeros((graph_tiles(len(tiles)) if padded else len(tiles), width), np.int32)
    flat = itertools.chain.from_iterable(tiles)
    result[: len(tiles)] = np.fromiter(flat, np.int32, len(tiles) * width).reshape(-1, width)
    return result


@dataclass(frozen=True)
class PackedTexts:
    """Token sequences one after the other, on the host."""

    rows: Array  # [3, R]
    lengths: list[int]

    @classmethod
    def from_texts(cls, texts: Items[npt.ArrayLike], slots: Items[int]) -> PackedTexts:
        texts = [np.asarray(text) for text in texts]
        lengths = [len(text) for text in texts]
        chunks = [(slot, 0, n) for slot, n in zip(slots, lengths, strict=True)]
        return cls(_rows_of(np.concatenate(texts), chunks), lengths)

    @property
    def num_rows(self) -> int:
        return self.rows.shape[1]

    def to_device(self, device: torch.device) -> PackedInputs:
        return self.inputs(device).to_device(device)

    def inputs(self, device: torch.device, padding_slot: int | None = None) -> HostInputs:
        """Returns the rows as a device takes them; with the padding slot, padded to a graph's size. CUDA takes rows in
        tiles, the CPU whole sequences."""
        tiles = tiles_of(self.lengths, **({} if device.type == "cuda" else {"rows": None}))
        padded = padding_slot is not None
        rows = _padded_rows(self.rows, padding_slot) if padded else self.rows
        return HostInputs.from_arrays(rows, _tiles(tiles, 3, padded=padded), np.empty((0, 2), np.int32), device)


def graph_rows(rows: int) -> int:
    """Returns the next number of rows that graphs are captured for: four to each power of two, of which a pass takes
    the host longer than a GPU; 16 beyond, as rows that are added cost as much as others."""
    bits = (rows - 1).bit_length()
    step = max(16, 1 << max(0, bits - (3 if bits <= 10 else 5)))
    return -(-rows // step) * step


def graph_tiles(tiles: int) -> int:
    return power_of_two(tiles)


@dataclass(frozen=True)
class PackedChunks:
    """Parts of prompts one after the other, on the host."""

    rows: Array  # [3 + axes, R]
    chunks: list[tuple[int, int, int]]  # slot, first position, rows
    ends: list[tuple[int, int]]  # rows of the last tokens of sequences, and their slots; one at least

    @classmethod
    def from_prefills(cls, prefills: list[tuple[Sequence, PrefillChunk]], padding_slot: int) -> PackedChunks:
        """Packs chunks of prompts. Where none ends a prompt, the first row is kept for the padding slot: a pass over no
        rows is none."""
        chunks = [(s.slots[chunk.beam], chunk.start, chunk.end - chunk.start) for s, chunk in prefills]
        token_ids = [*itertools.chain.from_iterable(s.tokens[chunk.start : chunk.end] for s, chunk in prefills)]
        rows = _rows_of(token_ids, chunks)
        axes = [s.positions.between(chunk.start, chunk.end) for s, chunk in prefills if s.positions is not None]
        counts = itertools.accumulate(count for _, _, count in chunks)
        ends = [(n - 1, s.slot) for n, (s, chunk) in zip(counts, prefills, strict=True) if s.ends_with(chunk)]
        rows = np.concatenate([rows, np.concatenate(axes, 1)]) if axes else rows
        return cls(rows, chunks, ends or [(0, padding_slot)])

    @property
    def num_rows(self) -> int:
        return self.rows.shape[1]

    def token_ids(self) -> Iterator[Array]:
        """Yields those of each chunk."""
        begin = 0
        for _, _, count in self.chunks:
            yield self.rows[0, begin : begin + count]
            begin += count

    def to_device(self, device: torch.device) -> PackedInputs:
        return self.inputs(device).to_device(device)

    def inputs(self, device: torch.device, padding_slot: int | None = None) -> HostInputs:
        """Returns the rows as a device takes them; with the padding slot, padded to a graph's size."""
        tiles = prefill_attention.tiles_of(self.chunks, **({} if device.type == "cuda" else {"rows": None}))
        padded = padding_slot is not None
        rows = _padded_rows(self.rows, padding_slot) if padded else self.rows
        whole_tiles = _tiles(tiles, 4, padded=padded)
        # a chunk has a tile at least: a graph of so many tiles has room for as many ends
        extra = [(0, padding_slot)] * (len(whole_tiles) - len(self.ends)) if padded else []
        ends = np.array([*self.ends, *extra], np.int32).reshape(-1, 2)
        return HostInputs.from_arrays(rows, whole_tiles, ends, device)


def batched(items: list, size: int) -> list[list]:
    return [items[i : i + size] for i in range(0, len(items), size)]


def batched_by_size(items: list[T], most: int, size: Callable[[T], int]) -> Iterator[list[T]]:
    """Yields groups whose sizes, of rows or bytes, add up to `most` at the most, a larger item alone."""
    group, total = [], 0
    for item, own in zip(items, map(size, items), strict=True):
        if group and total + own > most:
            yield group
            group, total = [], 0
        group.append(item)
        total += own
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


def padded(rows: Items[Items[int]], fill: int, width: int | None = None) -> Array:
    """Returns rows of different lengths as an array [n, width], with `fill` after the end of each; by default as wide
    as the longest."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    result = np.full((len(rows), lengths.max() if width is None else width), fill, np.int32)
    flat = itertools.chain.from_iterable(rows)
    result[np.arange(result.shape[1]) < lengths[:, None]] = np.fromiter(flat, np.int32, lengths.sum())
    return result


def packed(counts: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """Turns (slot, n) pairs into the slot and the position of each of their rows, [sum of n] int32 each, on the host"""
    slots = torch.cat([torch.full((n,), slot, dtype=torch.int32) for slot, n in counts])
    positions = torch.cat([torch.arange(n, dtype=torch.int32) for _, n in counts])
    return slots, positions


def power_of_two(least: int) -> int:
    """Returns the smallest power of two that is not below `least`, which is above 0."""
    return 1 << (least - 1).bit_length()


def largest_power_of_two(most: int) -> int:
    """Returns the largest power of two that is not above `most`, which is above 0."""
    return 1 << (most.bit_length() - 1)


def pass_sizes(count: int, most: int) -> list[int]:
    """Returns the sizes, powers of two, of passes over so many things together: the next one, where that is not above
    `most` and no more than a quarter of it is left empty, else the last one and what the rest takes."""
    size = power_of_two(count)
    if size == count or (size <= most and 4 * count >= 3 * size):
        return [size]
    return [size // 2, *pass_sizes(count - size // 2, most)]


def bucket_of(rows: int, limit: int) -> int:
    """Returns the batch size a graph is captured for: powers of two up to 16, then multiples of 16."""
    if rows <= 16:
        return min(power_of_two(rows), max(limit, 1))
    return min(-(-rows // 16) * 16, limit)
