"""Attention layers: of a decoder over the paged cache, and of an encoder within packed sequences."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor, nn

from vlm.layers.context import ModelContext
from vlm.layers.embedding import Virtual
from vlm.layers.linear import Linear
from vlm.ops.kv_write import kv_write
from vlm.ops.packed_attention import attention_weights, packed_attention
from vlm.ops.paged_attention import paged_attention
from vlm.ops.prefill_attention import prefill_attention
from vlm.ops.rotary import rotary_kv_write


@dataclass(frozen=True)
class PagedRows:
    """The rows of a packed batch and where each one's keys and values live. `S` slots, `R` rows, `L` layers."""

    cache: Tensor  # [L, 2, blocks, H, block_size, D]
    self_tables: Tensor  # [S, n] int32
    cross_tables: Tensor  # [S, m] int32
    slots: Tensor  # [R] int32
    positions: Tensor  # [R] int32
    self_lengths: Tensor  # [R] int32: positions + 1
    cross_lengths: Tensor | None  # [R] int32; None without cross-attention
    tiles: Tensor | None = None  # [T, 4] int32: of a prefill, see vlm.ops.prefill_attention; None: a row a sequence
    virtual: Virtual | None = None  # what stands for ids beyond the vocabulary

    def self_attention(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None, angles: Tensor | None
    ) -> Tensor:
        """q [R, H, D], k, v [R, H_kv, D] -> [R, H, D]; the keys and values enter the cache first."""
        keys, values = self.cache[layer]
        places = (keys, values, self.self_tables, self.slots, self.positions)
        if angles is None:
            kv_write(k, v, *places)
        else:
            q = rotary_kv_write(q, k, v, angles, *places)
        if self.tiles is None:
            return paged_attention(q, keys, values, self.self_tables, self.slots, self.self_lengths, scale, bias)
        return prefill_attention(q, keys, values, self.self_tables, self.tiles, scale, bias)

    def cross_attention(self, layer: int, q: Tensor, scale: float) -> Tensor:
        """q [R, H, D] -> [R, H, D], over what `write_cross` wrote"""
        keys, values = self.cache[layer]
        return paged_attention(q, keys, values, self.cross_tables, self.slots, self.cross_lengths, scale)

    def write_cross(self, layer: int, k: Tensor, v: Tensor) -> None:
        """k, v [R, H, D] -> a layer's cross K/V at (slot, position) of each row"""
        keys, values = self.cache[layer]
        kv_write(k, v, keys, values, self.cross_tables, self.slots, self.positions)


@dataclass
class HiddenStateRecorder:
    """Records what an encoder computes on the way to its output, where someone asks for it."""

    keep_attentions: bool = False
    hidden_states: list[Tensor] = field(default_factory=list)  # [R, hidden]: what goes into each block
    attentions: list[list[Tensor]] = field(default_factory=list)  # a layer: of each sequence [H, T, T] float32


@dataclass(frozen=True)
class PackedRows:
    """The rows of an encoder's batch: whole sequences, one after the other."""

    positions: Tensor  # [R] int32
    tiles: Tensor  # [T, 3] int32: see vlm.ops.packed_attention
    recorder: HiddenStateRecorder | None = None
    virtual: Virtual | None = None  # what stands for ids beyond the vocabulary

    def record(self, x: Tensor, delta: Tensor | None) -> None:
        """What goes into a block: the stream and what is still to be added to it."""
        if self.recorder is not None:
            self.recorder.hidden_states.append(x if delta is None else x + delta)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None) -> Tensor:
        """q, k, v [R, H, D] -> [R, H, D], each row over all rows of its sequence"""
        if self.recorder is not None and self.recorder.keep_attentions:
            self.recorder.attentions.append(attention_weights(q, k, self.tiles, scale, bias))
        return packed_attention(q, k, v, self.tiles, scale, bias)


class Attention(nn.Module):
    """What the kinds of attention share. `scale` None: 1/sqrt(head_dim)."""

    def __init__(self, head_dim: int, scale: float | None):
        super().__init__()
        self.head_dim = head_dim
        self.scale = head_dim**-0.5 if scale is None else scale

    def heads(self, linear: Linear) -> tuple[int, ...]:
        """Returns how many heads each part of a Linear's outputs has."""
        return tuple(size // self.head_dim for size in linear.part_sizes.values())

    def split(self, x: Tensor, heads: tuple[int, ...]) -> tuple[Tensor, ...]:
        """[R, sum of heads · D] -> [R, H, D] for each number of heads"""
        return x.view(x.shape[0], -1, self.head_dim).split(heads, 1)


class EncoderAttention(Attention):
    """Multi-head attention of each row over all rows of its sequence."""

    def __init__(
        self,
        hidden: int,
        num_heads: int,
        *,
        context: ModelContext,
        head_dim: int | None = None,
        bias: bool = True,
        scale: float | None = None,
    ):
        super().__init__(head_dim or hidden // num_heads, scale)
        inner = num_heads * self.head_dim
        parts = {"q": inner, "k": inner, "v": inner}
        self.qkv = Linear(hidden, parts, bias=bias, axis="column", context=context)
        self.out = Linear(inner, hidden, bias=bias, axis="row", context=context)
        self.qkv_heads = self.heads(self.qkv)

    def forward(self, x: Tensor, rows: PackedRows, bias: Tensor | None = None) -> Tensor:
        """x [R, hidden], bias [H, 2 M + 1] by distance -> [R, hidden]"""
        q, k, v = self.split(self.qkv(x), self.qkv_heads)
        return self.out(rows.attention(q, k, v, self.scale, bias).flatten(1))


class SelfAttention(Attention):
    """Multi-head attention of each row over the earlier tokens of its sequence.

    `num_kv_heads` below `num_heads`: so many heads of keys and values, each for several of queries.
    """

    def __init__(
        self,
        hidden: int,
        num_heads: int,
        layer: int,
        *,
        context: ModelContext,
        head_dim: int | None = None,
        bias: bool = True,
        scale: float | None = None,
        num_kv_heads: int | None = None,
    ):
        super().__init__(head_dim or hidden // num_heads, scale)
        inner, kv = num_heads * self.head_dim, (num_kv_heads or num_heads) * self.head_dim
        self.layer = layer
        self.qkv = Linear(hidden, {"q": inner, "k": kv, "v": kv}, bias=bias, axis="column", context=context)
        self.out = Linear(inner, hidden, bias=bias, axis="row", context=context)
        self.qkv_heads = self.heads(self.qkv)

    def forward(self, x: Tensor, rows: PagedRows, bias: Tensor | None = None, angles: Tensor | None = None) -> Tensor:
        """x [R, hidden], bias [H, 2 M + 1] by distance, angles [R, 2, n] of rotary positions -> [R, hidden]; the rows'
        keys and values enter the cache first."""
        q, k, v = self.split(self.qkv(x), self.qkv_heads)
        return self.out(rows.self_attention(self.layer, q, k, v, self.scale, bias, angles).flatten(1))


class CrossAttention(Attention):
    """Multi-head attention of each row over the encoder output of its sequence, whose K/V were written at admission.

    They lie in the same pool as the self-attention's, in blocks of their own.
    """

    def __init__(
        self,
        hidden: int,
        num_heads: int,
        layer: int,
        *,
        context: ModelContext,
        head_dim: int | None = None,
        bias: bool = True,
        scale: float | None = None,
    ):
        super().__init__(head_dim or hidden // num_heads, scale)
        inner = num_heads * self.head_dim
        self.layer = layer
        self.q = Linear(hidden, {"q": inner}, bias=bias, axis="column", context=context)
        self.kv = Linear(hidden, {"k": inner, "v": inner}, bias=bias, axis="column", context=context)
        self.out = Linear(inner, hidden, bias=bias, axis="row", context=context)
        self.q_heads, self.kv_heads = self.heads(self.q), self.heads(self.kv)

    def forward(self, x: Tensor, rows: PagedRows) -> Tensor:
        """x [R, hidden] -> [R, hidden]"""
        (q,) = self.split(self.q(x), self.q_heads)
        return self.out(rows.cross_attention(self.layer, q, self.scale).flatten(1))

    def write(self, features: Tensor, rows: PagedRows) -> None:
        """Encoder output [R, hidden] -> this layer's cross K/V at (slot, position) of each row."""
        k, v = self.split(self.kv(features), self.kv_heads)
        rows.write_cross(self.layer, k, v)
