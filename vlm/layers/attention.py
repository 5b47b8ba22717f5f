"""Self- and cross-attention of a decoder over the paged cache."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from vlm.layers.linear import Linear
from vlm.ops.kv_write import kv_write
from vlm.ops.paged_attention import paged_attention


@dataclass(frozen=True)
class PagedRows:
    """The rows of a packed batch and where each one's keys and values live. `S` slots, `R` rows, `L` layers."""

    cache: Tensor  # [L, 2, blocks, H, block_size, D]
    self_tables: Tensor  # [S, n] int32
    cross_tables: Tensor  # [S, m] int32
    slots: Tensor  # [R] int32
    positions: Tensor  # [R] int32
    self_lengths: Tensor  # [R] int32: positions + 1
    cross_lengths: Tensor  # [R] int32


class SelfAttention(nn.Module):
    """Multi-head attention of each row over the earlier tokens of its sequence."""

    def __init__(self, hidden: int, num_heads: int, layer: int, bias: bool = True):
        super().__init__()
        self.num_heads, self.head_dim, self.layer = num_heads, hidden // num_heads, layer
        self.qkv = Linear(hidden, 3 * hidden, bias=bias)
        self.out = Linear(hidden, hidden, bias=bias)

    def forward(self, x: Tensor, rows: PagedRows) -> Tensor:
        """x [R, hidden] -> [R, hidden]; the rows' keys and values enter the cache first."""
        q, k, v = self.qkv(x).view(len(x), 3, self.num_heads, self.head_dim).unbind(1)
        keys, values = rows.cache[self.layer]
        kv_write(k, v, keys, values, rows.self_tables, rows.slots, rows.positions)
        y = paged_attention(q, keys, values, rows.self_tables, rows.slots, rows.self_lengths, self.head_dim**-0.5)
        return self.out(y.flatten(1))


class CrossAttention(nn.Module):
    """Multi-head attention of each row over the encoder output of its sequence, whose K/V were written at admission.

    They lie in the same pool as the self-attention's, in blocks of their own.
    """

    def __init__(self, hidden: int, num_heads: int, layer: int, bias: bool = True):
        super().__init__()
        self.num_heads, self.head_dim, self.layer = num_heads, hidden // num_heads, layer
        self.q = Linear(hidden, hidden, bias=bias)
        self.kv = Linear(hidden, 2 * hidden, bias=bias)
        self.out = Linear(hidden, hidden, bias=bias)

    def forward(self, x: Tensor, rows: PagedRows) -> Tensor:
        """x [R, hidden] -> [R, hidden]"""
        q = self.q(x).view(len(x), self.num_heads, self.head_dim)
        keys, values = rows.cache[self.layer]
        y = paged_attention(q, keys, values, rows.cross_tables, rows.slots, rows.cross_lengths, self.head_dim**-0.5)
        return self.out(y.flatten(1))

    def write(self, features: Tensor, rows: PagedRows) -> None:
        """Encoder output [R, hidden] -> this layer's cross K/V at (slot, position) of each row."""
        k, v = self.kv(features).view(len(features), 2, self.num_heads, self.head_dim).unbind(1)
        keys, values = rows.cache[self.layer]
        kv_write(k, v, keys, values, rows.cross_tables, rows.slots, rows.positions)
