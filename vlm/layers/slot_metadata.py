"""Attention metadata of graphs for other runtimes, over linear caches.

A batch is `B` sequences of `S` rows each, right-padded; its rows lie one after the other, R = B · S.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from vlm.layers.attention_metadata import AttentionMetadata
from vlm.ops.rotary import slot_rotary
from vlm.ops.slot_attention import slot_attention, slot_write

Caches = list[tuple[Tensor, Tensor]]  # a layer: keys and values [B, H, T, D]


def heads(x: Tensor, batch: int) -> Tensor:
    """Returns [B, H, S, D] of the rows x [B · S, H, D]."""
    return x.unflatten(0, (batch, -1)).transpose(1, 2)


def rows_of(x: Tensor) -> Tensor:
    """Returns the rows [B · S, H, D] of x [B, H, S, D]."""
    return x.transpose(1, 2).flatten(0, 1)


def scaled(q: Tensor, scale: float) -> Tensor:
    return q if scale == 1.0 else q * scale


def unseen(dtype: torch.dtype) -> float:
    """Returns what hides a key; finite, since a runtime may subtract it from itself."""
    return -30000.0 if dtype == torch.float16 else -1e9


def places(starts: Tensor, span: int) -> Tensor:
    """Returns the places [B, S] int64 of `span` rows each in sequences, from `starts` [B] on."""
    return starts[:, None] + torch.arange(span, device=starts.device)


@dataclass
class SlotMetadata(AttentionMetadata):
    """Lays out a decoder's rows: token s of sequence b stands at starts[b] + s, and sees all before it. The
    lists hold, once the decoder has run, the caches with the new keys and values."""

    starts: Tensor  # [B] int64
    span: int  # S
    self_caches: Caches
    cross_caches: Caches = field(default_factory=list)
    cross_lengths: Tensor | None = None  # [B] int64
    _masks: dict[int, Tensor] = field(default_factory=dict)  # by bias, which layers share

    def self_attention(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, bias: Tensor | None, angles: Tensor | None
    ) -> Tensor:
        batch = self.starts.shape[0]
        q, k, v = (heads(x, batch) for x in (q, k, v))
        if angles is not None:
            cos, sin = angles.to(q.dtype).unflatten(0, (batch, self.span)).unbind(2)
            q, k = (slot_rotary(x, cos, sin) for x in (q, k))
        keys, values = self.self_caches[layer]
        keys, values = slot_write(keys, k, self.starts), slot_write(values, v, self.starts)
        self.self_caches[layer] = keys, values
        mask = None if bias is None else self._mask(bias, keys.shape[2], q.dtype)
        lengths = self.starts + self.span
        return rows_of(slot_attention(scaled(q, scale), keys, values, mask, lengths, bias is None))

    def _mask(self, bias: Tensor, keys: int, dtype: torch.dtype) -> Tensor:
        """Returns [B, H, S, T] of [H, 2 M + 1] by distance, later keys hidden: bias and causality exclude each
        other."""
        if id(bias) not in self._masks:
            most = bias.shape[1] // 2
            distances = torch.arange(keys, device=bias.device) - places(self.starts, self.span)[..., None]
            mask = bias.to(dtype)[:, distances.clamp(-most, most) + most].transpose(0, 1)
            self._masks[id(bias)] = mask.masked_fill((distances > 0)[:, None], unseen(dtype))
        return self._masks[id(bias)]

    def cross_attention(self, layer: int, q: Tensor, *, scale: float) -> Tensor:
        q = scaled(heads(q, self.starts.shape[0]), scale)
        keys, values = self.cross_caches[layer]
        return rows_of(slot_attention(q, keys, values, None, self.cross_lengths, False))


@dataclass
class CrossMetadata(AttentionMetadata):
    """Lays out the rows of an encoder's output on their way into the cross caches."""

    batch: int
    caches: Caches = field(default_factory=list)

    def write_cross(self, layer: int, k: Tensor, v: Tensor) -> None:
        assert layer == len(self.caches), "layers come in order"
        self.caches.append((heads(k, self.batch), heads(v, self.batch)))


@dataclass(frozen=True)
class PaddedMetadata(AttentionMetadata):
    """Lays out an encoder's rows: `lengths` rows of each sequence count."""

    lengths: Tensor  # [B] int64
    span: int  # S

    def encoder_attention(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float, bias: Tensor | None) -> Tensor:
        q, k, v = (heads(x, self.lengths.shape[0]) for x in (q, k, v))
        mask = None if bias is None else self._mask(bias, q.dtype)
        return rows_of(slot_attention(scaled(q, scale), k, v, mask, self.lengths, False))

    def _mask(self, bias: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns [1, H, S, S] of [H, 2 M + 1] by distance."""
        most, at = bias.shape[1] // 2, torch.arange(self.span, device=bias.device)
        return bias.to(dtype)[None, :, (at - at[:, None]).clamp(-most, most) + most]
