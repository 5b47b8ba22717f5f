"""Attention layers: of a decoder over its cache and over an encoder's output, and of an encoder over itself."""

from __future__ import annotations

from torch import Tensor, nn

from vlm.errors import ConfigError
from vlm.layers.context import ModelContext
from vlm.layers.forward_batch import ForwardBatch
from vlm.layers.linear import Linear
from vlm.layers.quant.producer import Producer


class Attention(nn.Module):
    """Cuts what a Linear computes into heads, as many as its parts are wide. `scale` None: 1/sqrt(head_dim)."""

    def __init__(self, head_dim: int, scale: float | None):
        super().__init__()
        self.head_dim = head_dim
        self.scale = head_dim**-0.5 if scale is None else scale

    def heads(self, linear: Linear) -> tuple[int, ...]:
        """Returns how many heads each part of a Linear's outputs has on this rank."""
        return tuple(size // self.head_dim for size in linear.part_sizes.values())

    def split(self, x: Tensor, heads: tuple[int, ...]) -> tuple[Tensor, ...]:
        """Splits [R, sum of heads · D] into [R, H, D] for each number of heads."""
        return x.view(x.shape[0], -1, self.head_dim).split(heads, 1)


def head_units(num_heads: int, num_kv_heads: int, context: ModelContext) -> dict[str, int]:
    """Returns in how many pieces ranks split the parts of an attention layer: heads of keys and values with the heads
    of queries that meet them; the latter alone where the former are fewer than ranks. Raises ConfigError where they
    cannot be split."""
    ranks = context.mapping.shard.size
    queries = num_kv_heads
    if num_kv_heads < ranks:
        queries = num_heads
        if num_heads % ranks or ranks % num_kv_heads:
            raise ConfigError(
                f"an attention layer of {num_heads} heads of queries and {num_kv_heads} of keys cannot be split among"
                f" {ranks} ranks; run the model on fewer GPUs."
            )
    return {"q": queries, "k": num_kv_heads, "v": num_kv_heads, "in": queries}


class EncoderAttention(Attention):
    """Computes multi-head attention of each row over all rows of its sequence."""

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
        parts, units = {"q": inner, "k": inner, "v": inner}, head_units(num_heads, num_heads, context)
        self.qkv = Linear(hidden, parts, bias=bias, axis="column", units=units, context=context)
        self.out = Linear(inner, hidden, bias=bias, axis="row", units=units, context=context)
        self.qkv_heads = self.heads(self.qkv)
        self.producers = {"out": Producer("qkv", "v")}

    def forward(self, x: Tensor, batch: ForwardBatch, bias: Tensor | None = None) -> Tensor:
        """Attends to all rows of the same sequence: x [R, hidden], bias [H, 2 M + 1] by distance -> [R, hidden]"""
        q, k, v = self.split(self.qkv(x, batch), self.qkv_heads)
        if batch.recorder is not None and batch.recorder.keep_attentions:
            weights = batch.attention.attention_weights(q, k, scale=self.scale, bias=bias)
            batch.recorder.attentions.append(weights)
        mixed = batch.attention.encoder_attention(q, k, v, scale=self.scale, bias=bias)
        return self.out(mixed.flatten(1), batch)


class SelfAttention(Attention):
    """Computes multi-head attention of each row over the earlier tokens of its sequence.

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
        parts, units = {"q": inner, "k": kv, "v": kv}, head_units(num_heads, num_kv_heads or num_heads, context)
        self.qkv = Linear(hidden, parts, bias=bias, axis="column", units=units, context=context)
        self.out = Linear(inner, hidden, bias=bias, axis="row", units=units, context=context)
        self.qkv_heads = self.heads(self.qkv)
        # a head of values that several of queries share would need one scale for all of theirs
        self.producers = {"out": Producer("qkv", "v")} if kv == inner else {}

    def forward(
        self, x: Tensor, batch: ForwardBatch, *, bias: Tensor | None = None, angles: Tensor | None = None
    ) -> Tensor:
        """Attends to the sequence so far: x [R, hidden], bias [H, 2 M + 1] by distance, angles [R, 2, n] of rotary
        positions -> [R, hidden]; the rows' keys and values enter the cache first."""
        q, k, v = self.split(self.qkv(x, batch), self.qkv_heads)
        mixed = batch.attention.self_attention(self.layer, q, k, v, scale=self.scale, bias=bias, angles=angles)
        return self.out(mixed.flatten(1), batch)


class CrossAttention(Attention):
    """Computes multi-head attention of each row over the encoder output of its sequence, whose K/V were written at
    admission.

    They lie in the same pool as the self-attention's, in blocks of their own. `encoder_size` None: the encoder's rows
    are as wide as its own.
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
        encoder_size: int | None = None,
    ):
        super().__init__(head_dim or hidden // num_heads, scale)
        inner = num_heads * self.head_dim
        self.layer = layer
        units = head_units(num_heads, num_heads, context)
        self.q = Linear(hidden, {"q": inner}, bias=bias, axis="column", units=units, context=context)
        parts = {"k": inner, "v": inner}
        self.kv = Linear(encoder_size or hidden, parts, bias=bias, axis="column", units=units, context=context)
        self.out = Linear(inner, hidden, bias=bias, axis="row", units=units, context=context)
        self.kv_heads = self.heads(self.kv)
        self.producers = {"out": Producer("kv", "v")}

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Attends to the encoder's output: x [R, hidden] -> [R, hidden]"""
        q = self.q(x, batch).view(x.shape[0], -1, self.head_dim)
        mixed = batch.attention.cross_attention(self.layer, q, scale=self.scale)
        return self.out(mixed.flatten(1), batch)

    def write(self, features: Tensor, batch: ForwardBatch) -> None:
        """Puts this layer's keys and values of an encoder's output [R, encoder_size] into the cache."""
        k, v = self.split(self.kv(features, batch), self.kv_heads)
        batch.attention.write_cross(self.layer, k, v)
