"""Output heads: hidden rows -> a score for each token of the vocabulary, on all ranks."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from vlm.layers.context import ModelContext
from vlm.layers.forward_batch import ForwardBatch
from vlm.layers.linear import Linear
from vlm.layers.quant.dense import Dense
from vlm.ops.layouts.padded_rows import VECTOR, padded
from vlm.parallel.collectives import Collectives
from vlm.parallel.mapping import Shard


class Head(Linear):
    """Scores tokens by a weight of its own; ranks have equal parts of the vocabulary, the last one is filled up."""

    def __init__(self, hidden: int, vocab_size: int, *, context: ModelContext):
        shard = context.mapping.shard
        super().__init__(hidden, _share(vocab_size, shard) * shard.size, bias=False, axis="column", context=context)
        self.vocab_size, self.stages = vocab_size, context.stages

    def forward(self, x: Tensor, batch: ForwardBatch | None = None, bias: Tensor | None = None) -> Tensor:
        """Maps x [R, hidden], batch of these rows, bias [V], which a network keeps beside its head -> [R, V]"""
        return self.stages.from_last(self._scores(x, batch, bias))

    def _scores(self, x: Tensor, batch: ForwardBatch | None, bias: Tensor | None) -> Tensor:
        if self.shard.size == 1 and self.adapter_ids(batch) is None:
            return self.method.apply(self, x, bias)
        y = self.adapted(x, None, batch)  # the bias is none that adapters change
        return _gathered(y, bias, vocab_size=self.vocab_size, collectives=self.collectives)


class TiedHead(nn.Module):
    """Scores tokens by the embedding's weight: it has none of its own, and no name in a state dict. Each rank has the
    whole embedding, and multiplies with its part of it."""

    out_fp32 = False

    def __init__(self, embedding: nn.Embedding, context: ModelContext):
        super().__init__()
        self._embedding = (embedding,)  # within a tuple it is no submodule
        self.method = Dense()  # as embeddings are
        self.shard, self.collectives, self.stages = context.mapping.shard, context.collectives, context.stages

    @property
    def weight(self) -> Tensor:
        weight = self._embedding[0].weight
        if self.shard.size == 1:
            return weight
        share = _even_share(len(weight), self.shard)
        return weight[self.shard.rank * share : (self.shard.rank + 1) * share]

    def forward(self, x: Tensor, batch: ForwardBatch | None = None, bias: Tensor | None = None) -> Tensor:
        """Maps x [R, hidden], bias [V], which a network keeps beside its head -> [R, V]; no adapter changes it"""
        return self.stages.from_last(self._scores(x, bias))

    def _scores(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self.shard.size == 1:
            return self.method.apply(self, x, bias)
        vocab_size = self._embedding[0].num_embeddings
        y = self.method.apply(self, x, None)
        y = F.pad(y, (0, _even_share(vocab_size, self.shard) - y.shape[1]))  # the last rank may have fewer
        return _gathered(y, bias, vocab_size=vocab_size, collectives=self.collectives)


class DistantHead(nn.Module):
    """Stands for the head where only the last stage of a pipeline has it."""

    def __init__(self, vocab_size: int, context: ModelContext):
        super().__init__()
        self.vocab_size, self.stages = vocab_size, context.stages

    def forward(self, x: Tensor, batch: ForwardBatch | None = None, bias: Tensor | None = None) -> Tensor:
        """Returns the last stage's scores [R, V], as many as x has rows and in its type."""
        return self.stages.from_last(x.new_empty(len(x), self.vocab_size))


def _share(vocab_size: int, shard: Shard) -> int:
    """Returns the scores of a rank's part."""
    return -(-vocab_size // shard.size)


def _even_share(vocab_size: int, shard: Shard) -> int:
    """Returns the same in whole vectors, where the last rank has some score then."""
    even = -(-vocab_size // (VECTOR * shard.size)) * VECTOR
    return even if even * (shard.size - 1) < vocab_size else _share(vocab_size, shard)


def _gathered(y: Tensor, bias: Tensor | None, *, vocab_size: int, collectives: Collectives) -> Tensor:
    """Returns the scores [R, V] of which each rank has its part y, the last one's filled up."""
    scores = collectives.all_gather(y)[:, :vocab_size]
    return scores if bias is None else scores + bias


def output_head(embedding: nn.Embedding, *, tied: bool, context: ModelContext) -> Head | TiedHead | DistantHead:
    """Returns the head over an embedding's vocabulary, of rows as wide as the embedding's."""
    if not context.stages.is_last:
        return DistantHead(embedding.num_embeddings, context)
    if tied:
        return TiedHead(embedding, context)
    return Head(embedding.embedding_dim, embedding.num_embeddings, context=context)


def with_padded_heads(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns a network's tensors, which are to be its own: what its head multiplies with and adds has padding (see
    vlm.ops.layouts.padded_rows) where its product is faster so. Shapes and values stay."""
    is_tied = not any(name.startswith("head.") for name in tensors)
    names = {"embedding.weight" if is_tied else "head.weight", "logits_bias"}
    own = {name for name in names & {*tensors} if _is_faster_padded(tensors[name])}
    return {name: padded(values) if name in own else values for name, values in tensors.items()}


def _is_faster_padded(values: Tensor) -> bool:
    return values.is_cuda and values.element_size() == 2 and len(values) % VECTOR != 0
