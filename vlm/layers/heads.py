"""Output heads: hidden rows -> a score for each token of the vocabulary."""

from __future__ import annotations

from torch import Tensor, nn

from vlm.layers.context import ModelContext
from vlm.layers.forward_batch import ForwardBatch
from vlm.layers.linear import Linear
from vlm.layers.quant.dense import Dense


class Head(Linear):
    """Scores tokens by a weight of its own."""

    def __init__(self, hidden: int, vocab_size: int, *, context: ModelContext):
        super().__init__(hidden, vocab_size, bias=False, context=context)

    def forward(self, x: Tensor, batch: ForwardBatch | None = None, bias: Tensor | None = None) -> Tensor:
        """Maps x [R, hidden], batch of these rows, bias [V], which a network keeps beside its head -> [R, V]"""
        return self.adapted(x, self.method.apply(self, x, bias), batch)


class TiedHead(nn.Module):
    """Scores tokens by the embedding's weight: it has none of its own, and no name in a state dict."""

    out_fp32 = False

    def __init__(self, embedding: nn.Embedding):
        super().__init__()
        self._embedding = (embedding,)  # within a tuple it is no submodule
        self.method = Dense()  # as embeddings are

    @property
    def weight(self) -> Tensor:
        return self._embedding[0].weight

    def forward(self, x: Tensor, batch: ForwardBatch | None = None, bias: Tensor | None = None) -> Tensor:
        """Maps x [R, hidden], bias [V], which a network keeps beside its head -> [R, V]; no adapter changes it"""
        return self.method.apply(self, x, bias)


def output_head(embedding: nn.Embedding, *, tied: bool, context: ModelContext) -> Head | TiedHead:
    """Returns the head over an embedding's vocabulary, of rows as wide as the embedding's."""
    if tied:
        return TiedHead(embedding)
    return Head(embedding.embedding_dim, embedding.num_embeddings, context=context)
