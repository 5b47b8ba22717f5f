"""Attention layers: of a decoder over its cache and over an encoder's output, and of an encoder over itself."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn

from vlm.errors import ConfigError
from vlm.layers.context import ModelContext
from vlm.layers.forward_batch import ForwardBatch
from vlm.layers.linear import Linear
from vlm.layers.norm import RmsNorm
from vlm.layers.quant.dense import Dense
from vlm.layers.quant.producer import Producer
from vlm.ops.attention.absorbed_attention import absorbed_attention
from vlm.ops.attention.rotary import rotary
from vlm.ops.attention_variant import PLAIN, AttentionVariant, Scores
from vlm.ops.qk_norm import qk_norm


class Attention(nn.Module):
    """Cuts what a Linear computes into heads, as many as its parts are wide. `scale` None: 1/sqrt(head_dim).

    `num_kv_heads` below `num_heads`: so many heads of keys and values, each for several of queries.
    """

    def __init__(self, head_dim: int, scale: float | None, variant: AttentionVariant):
        super().__init__()
        self.variant = variant
        self.head_dim = head_dim
        self.scale = head_dim**-0.5 if scale is None else scale

    def scores(self, bias: Tensor | None = None) -> Scores:
        """Returns how it scores keys; bias [H, 2 M + 1] by distance."""
        return Scores(self.scale, bias, self.variant)

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


class FusedAttention(Attention):
    """Makes queries, keys and values of the same rows, in one product.

    `num_kv_heads` below `num_heads`: so many heads of keys and values, each for several of queries. `qk_norm_eps`: each
    head's queries and keys are normed before their positions turn them. `out_bias` None: as `bias`.
    """

    def __init__(
        self,
        hidden: int,
        num_heads: int,
        *,
        context: ModelContext,
        head_dim: int | None = None,
        bias: bool = True,
        out_bias: bool | None = None,
        scale: float | None = None,
        num_kv_heads: int | None = None,
        qk_norm_eps: float | None = None,
        variant: AttentionVariant = PLAIN,
    ):
        super().__init__(head_dim or hidden // num_heads, scale, variant)
        inner, kv = num_heads * self.head_dim, (num_kv_heads or num_heads) * self.head_dim
        parts, units = {"q": inner, "k": kv, "v": kv}, head_units(num_heads, num_kv_heads or num_heads, context)
        self.qkv = Linear(hidden, parts, bias=bias, axis="column", units=units, context=context)
        out_bias = bias if out_bias is None else out_bias
        self.out = Linear(inner, hidden, bias=out_bias, axis="row", units=units, context=context)
        self.qkv_heads = self.heads(self.qkv)
        self.has_norms = qk_norm_eps is not None
        if qk_norm_eps is not None:
            self.q_norm, self.k_norm = RmsNorm(self.head_dim, qk_norm_eps), RmsNorm(self.head_dim, qk_norm_eps)
        # a head of values that several of queries share would need one scale for all of theirs
        self.producers = {"out": Producer("qkv", "v")} if kv == inner else {}

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Returns queries [R, H, D] and keys [R, H_kv, D], normed where there are norms."""
        return qk_norm(q, k, self.q_norm.weight, self.k_norm.weight, self.q_norm.eps) if self.has_norms else (q, k)


class EncoderAttention(FusedAttention):
    """Computes multi-head attention of each row over all rows of its sequence."""

    def forward(
        self, x: Tensor, batch: ForwardBatch, bias: Tensor | None = None, *, angles: Tensor | None = None
    ) -> Tensor:
        """Attends to all rows of the same sequence: x [R, hidden], bias [H, 2 M + 1] by distance, angles [R, 2, n] of
        rotary positions -> [R, hidden]"""
        rows = self.qkv(x, batch)
        q, k, v = self.split(rows, self.qkv_heads)
        if self.has_norms:
            q, k = self.normed(q, k)
            q, k = (q, k) if angles is None else (rotary(q, angles), rotary(k, angles))
        elif angles is not None:
            both = sum(self.qkv_heads[:2])
            turned = rotary(rows.view(len(rows), -1, self.head_dim)[:, :both], angles)
            q, k = turned.split(self.qkv_heads[:2], 1)
        scores = self.scores(bias)
        if batch.recorder is not None and batch.recorder.keep_attentions:
            batch.recorder.attentions.append(batch.attention.attention_weights(q, k, scores=scores))
        mixed = batch.attention.encoder_attention(q, k, v, scores=scores)
        return self.out(mixed.flatten(1), batch)


class SelfAttention(FusedAttention):
    """Computes multi-head attention of each row over the earlier tokens of its sequence, whose keys and values are the
    cache's of this `layer`; the rest as in FusedAttention."""

    def __init__(self, hidden: int, num_heads: int, layer: int, **options: Any):
        super().__init__(hidden, num_heads, **options)
        self.layer = layer

    def forward(
        self, x: Tensor, batch: ForwardBatch, *, bias: Tensor | None = None, angles: Tensor | None = None
    ) -> Tensor:
        """Attends to the sequence so far: x [R, hidden], bias [H, 2 M + 1] by distance, angles [R, 2, n] of rotary
        positions -> the batch's rows to keep [n, hidden]; the keys and values of all enter the cache first."""
        q, k, v = self.split(self.qkv(x, batch), self.qkv_heads)
        q, k = self.normed(q, k)
        mixed = batch.attention.self_attention(self.layer, q, k, v, scores=self.scores(bias), angles=angles)
        return self.out(batch.keep_rows(mixed.flatten(1)), batch.narrowed)


class MergedAttention(SelfAttention):
    """Computes multi-head attention of each row over the earlier tokens of its sequence and its encoder's output at
    once, in one softmax, by the same projections and norms (T5Gemma 2, arXiv:2512.14856).

    Keys of the encoder's output have no positions, and no window hides them. They lie in blocks of their own, where
    `write` put them at admission.
    """

    def forward(
        self, x: Tensor, batch: ForwardBatch, *, bias: Tensor | None = None, angles: Tensor | None = None
    ) -> Tensor:
        """Attends to the sequence so far and to the encoder's output: x [R, hidden], angles [R, 2, n] of rotary
        positions, which it needs; biases it has none -> [R, hidden]"""
        assert angles is not None and bias is None
        q, k, v = self.split(self.qkv(x, batch), self.qkv_heads)
        q, k = self.normed(q, k)
        mixed = batch.attention.merged_attention(self.layer, q, k, v, scores=self.scores(), angles=angles)
        return self.out(mixed.flatten(1), batch)

    def write(self, features: Tensor, batch: ForwardBatch) -> None:
        """Puts this layer's keys and values of an encoder's output [R, hidden] into the cache."""
        q, k, v = self.split(self.qkv(features, batch), self.qkv_heads)
        batch.attention.write_cross(self.layer, self.normed(q, k)[1], v)


class CrossAttention(Attention):
    """Computes multi-head attention of each row over the encoder output of its sequence, whose K/V were written at
    admission.

    They lie in the same pool as the self-attention's, in blocks of their own. `encoder_size` None: the encoder's rows
    are as wide as its own. Where all layers absorb the weights of keys and values they can do with the output itself.
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
        encoder_size: int | None = None,
        variant: AttentionVariant = PLAIN,
    ):
        super().__init__(head_dim or hidden // num_heads, scale, variant)
        inner, kv = num_heads * self.head_dim, (num_kv_heads or num_heads) * self.head_dim
        self.layer = layer
        units = head_units(num_heads, num_kv_heads or num_heads, context)
        self.q = Linear(hidden, {"q": inner}, bias=bias, axis="column", units=units, context=context)
        parts = {"k": kv, "v": kv}
        self.kv = Linear(encoder_size or hidden, parts, bias=bias, axis="column", units=units, context=context)
        self.out = Linear(inner, hidden, bias=bias, axis="row", units=units, context=context)
        self.kv_heads = self.heads(self.kv)
        self.producers = {"out": Producer("kv", "v")} if kv == inner else {}

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Attends to the encoder's output: x [R, hidden] -> [R, hidden]"""
        q = self.q(x, batch).view(x.shape[0], -1, self.head_dim)
        if (hidden := batch.attention.hidden_rows()) is None:
            mixed = batch.attention.cross_attention(self.layer, q, scores=self.scores())
        else:
            mixed = absorbed_attention(q, cast("Tensor", self.kv.weight), self.kv.bias, hidden, self.scale)
        return self.out(mixed.flatten(1), batch)

    @property
    def absorbs(self) -> bool:
        """Says whether it can do with an encoder's rows: the weights of all heads' keys and values are here as they
        are, and a row is narrower than its keys and values together."""
        is_whole = len(set(self.kv_heads)) == 1 and self.kv.part_sizes["k"] == self.q.out_features
        narrow = self.kv.in_features < 2 * self.kv.part_sizes["k"]
        return isinstance(self.kv.method, Dense) and is_whole and narrow and self.variant == PLAIN

    def write(self, features: Tensor, batch: ForwardBatch) -> None:
        """Puts this layer's keys and values of an encoder's output [R, encoder_size] into the cache."""
        k, v = self.split(self.kv(features, batch), self.kv_heads)
        batch.attention.write_cross(self.layer, k, v)
