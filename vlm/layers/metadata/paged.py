"""Attention metadata of decoders over a cache of blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from vlm.layers.metadata.base import AttentionMetadata
from vlm.ops.attention.kv_write import kv_write
from vlm.ops.attention.merged_attention import merged_attention
from vlm.ops.attention.paged_attention import paged_attention
from vlm.ops.attention.prefill_attention import prefill_attention
from vlm.ops.attention.rotary import rotary_kv_write
from vlm.ops.attention.step_attention import step_attention
from vlm.ops.attention_variant import Scores
from vlm.ops.layouts.paged_kv import HiddenRows, KVCache, NewTokens


@dataclass(frozen=True)
class PagedMetadata(AttentionMetadata):
    """Places a decoder's rows in a cache of blocks. `S` slots, `R` rows, `L` layers."""

    cache: KVCache
    self_tables: Tensor  # [S, n] int32
    cross_tables: Tensor  # [S, m] int32
    slots: Tensor  # [R] int32
    places: Tensor  # [R] int32: of each row in its sequence
    self_lengths: Tensor  # [R] int32: places + 1
    cross_lengths: Tensor | None = None  # [R] int32; None without cross-attention
    tiles: Tensor | None = None  # [T, 4] int32: of `prefill_attention`; None: a decode step's
    several: bool = False  # has a sequence more than one row of a decode step, which see those before?
    absorbs: bool = False  # does cross-attention read the encoder's rows, not their keys and values?

    def self_attention(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scores: Scores, angles: Tensor | None
    ) -> Tensor:
        kv = self.cache.layer(layer)
        if self.tiles is None and not self.several:
            new = NewTokens(k, v, self.places, angles)
            return step_attention(
                q, new, kv, self.self_tables, self.slots, self.self_lengths, scores.scale, scores.bias, scores.variant
            )
        if angles is None:
            kv_write(k, v, kv, self.self_tables, self.slots, self.places)
        else:
            q = rotary_kv_write(q, k, v, angles, kv, self.self_tables, self.slots, self.places)
        if self.tiles is None:
            return paged_attention(
                q, kv, self.self_tables, self.slots, self.self_lengths, scores.scale, scores.bias, scores.variant
            )
        return prefill_attention(q, kv, self.self_tables, self.tiles, scores.scale, scores.bias, scores.variant)

    def cross_attention(self, layer: int, q: Tensor, *, scores: Scores) -> Tensor:
        assert self.cross_lengths is not None
        kv, lengths = self.cache.layer(layer), self.cross_lengths
        return paged_attention(q, kv, self.cross_tables, self.slots, lengths, scores.scale, scores.bias, scores.variant)

    def merged_attention(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scores: Scores, angles: Tensor
    ) -> Tensor:
        assert self.cross_lengths is not None
        kv = self.cache.layer(layer)
        q = rotary_kv_write(q, k, v, angles, kv, self.self_tables, self.slots, self.places)
        tables, lengths = (self.self_tables, self.cross_tables), (self.self_lengths, self.cross_lengths)
        return merged_attention(q, kv, tables, self.slots, lengths, scores.scale, scores.variant)

    def write_cross(self, layer: int, k: Tensor, v: Tensor) -> None:
        kv_write(k, v, self.cache.layer(layer), self.cross_tables, self.slots, self.places)

    def write_hidden(self, features: Tensor) -> None:
        if self.cache.hidden is not None:
            self.cache.hidden.flatten(0, 1).index_copy_(0, self._cross_places(), features)

    def read_hidden(self) -> Tensor:
        assert self.cache.hidden is not None
        return self.cache.hidden.flatten(0, 1).index_select(0, self._cross_places())

    def hidden_rows(self) -> HiddenRows | None:
        if not self.absorbs:
            return None
        assert self.cache.hidden is not None and self.cross_lengths is not None
        return HiddenRows(self.cache.hidden, self.cross_tables, self.slots, self.cross_lengths)

    def _cross_places(self) -> Tensor:
        """Returns where in the blocks of cross-attention the rows are, [R] int64."""
        block = self.cross_tables[self.slots.long(), self.places.long() // self.cache.block_size].long()
        return block * self.cache.block_size + self.places % self.cache.block_size

    def sequences(self, start: int, end: int) -> PagedMetadata:
        assert self.tiles is None
        part, cross = slice(start, end), self.cross_lengths
        return replace(
            self,
            slots=self.slots[part],
            places=self.places[part],
            self_lengths=self.self_lengths[part],
            cross_lengths=None if cross is None else cross[part],
        )
