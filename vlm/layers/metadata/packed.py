"""Attention metadata of encoders, whose whole sequences lie one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vlm.layers.metadata.base import AttentionMetadata
from vlm.ops.attention.packed_attention import attention_weights, packed_attention
from vlm.ops.attention_variant import Scores


@dataclass(frozen=True)
class PackedMetadata(AttentionMetadata):
    """Lays out an encoder's rows: whole sequences, one after the other."""

    tiles: Tensor  # [T, 3] int32: see vlm.ops.attention.packed_attention

    def encoder_attention(self, q: Tensor, k: Tensor, v: Tensor, *, scores: Scores) -> Tensor:
        return packed_attention(q, k, v, self.tiles, scores.scale, scores.bias, scores.variant)

    def attention_weights(self, q: Tensor, k: Tensor, *, scores: Scores) -> list[Tensor]:
        return attention_weights(q, k, self.tiles, scores.scale, scores.bias, scores.variant)
