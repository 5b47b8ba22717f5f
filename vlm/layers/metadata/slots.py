"""Attention metadata of graphs for other runtimes, over linear caches.

A batch is `B` sequences of `S` rows each, right-padded; its rows lie one after the other, R = B · S. Of variants of
attention graphs know windows: `vlm.backends.graphs.export` refuses networks that cap scores.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from vlm.layers.metadata.base import AttentionMetadata
from vlm.ops.attention.rotary import slot_rotary
from vlm.ops.attention.slot_attention import slot_attention, slot_write
from vlm.ops.attention_variant import Scores

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


def added(bias: Tensor | None, reach: int | None, distances: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns what is added to scores of keys at these distances [B, S, T] from queries: [B, H, S, T] of a bias
    [H, 2 M + 1] by distance, else [B, 1, S, T]; keys beyond a window are hidden."""
    if bias is None:
        mask = torch.zeros_like(distances, dtype=dtype)[:, None]
    else:
        most = bias.shape[1] // 2
        mask = bias.to(dtype)[:, distances.clamp(-most, most) + most].transpose(0, 1)
    return mask if reach is None else mask.masked_fill((distances.abs() > reach)[:, None], unseen(dtype))


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
    _masks: dict[tuple[int, int | None], Tensor] = field(default_factory=dict)  # by what layers share

    def self_attention(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scores: Scores, angles: Tensor | None
    ) -> Tensor:
        batch = self.starts.shape[0]
        q, k, v = (heads(x, batch) for x in (q, k, v))
        if angles is not None:
            cos, sin = angles.to(q.dtype).unflatten(0, (batch, self.span)).unbind(2)
            q, k = (slot_rotary(x, cos, sin) for x in (q, k))
        keys, values = self.self_caches[layer]
        keys, values = slot_write(keys, k, self.starts), slot_write(values, v, self.starts)
        self.self_caches[layer] = keys, values
        mask = self._mask(scores.bias, scores.variant.reach, keys.shape[2], q.dtype)
        lengths = self.starts + self.span
        return rows_of(slot_attention(scaled(q, scores.scale), keys, values, mask, lengths, mask is None))

    def _mask(self, bias: Tensor | None, reach: int | None, keys: int, dtype: torch.dtype) -> Tensor | None:
        """Returns what is added, later keys hidden: a mask and causality exclude each other. None: nothing is."""
        if bias is None and reach is None:
            return None
        if (name := (id(bias), reach)) not in self._masks:
            distances = torch.arange(keys, device=self.starts.device) - places(self.starts, self.span)[..., None]
            self._masks[name] = added(bias, reach, distances, dtype).masked_fill(
                (distances > 0)[:, None], unseen(dtype)
            )
        return self._masks[name]

    def cross_attention(self, layer: int, q: Tensor, *, scores: Scores) -> Tensor:
        q = scaled(heads(q, self.starts.shape[0]), scores.scale)
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

    def encoder_attention(self, q: Tensor, k: Tensor, v: Tensor, *, scores: Scores) -> Tensor:
        q, k, v = (heads(x, self.lengths.shape[0]) for x in (q, k, v))
        at = torch.arange(self.span, device=q.device)
        bias, reach = scores.bias, scores.variant.reach
        is_plain = bias is None and reach is None
        mask = None if is_plain else added(bias, reach, (at - at[:, None])[None], q.dtype)
        return rows_of(slot_attention(scaled(q, scores.scale), k, v, mask, self.lengths, False))
