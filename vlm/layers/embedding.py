"""Token embeddings, some of whose rows come from elsewhere: images' features, tuned prompts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vlm.layers.context import ModelContext
from vlm.layers.forward_batch import ForwardBatch
from vlm.ops.embed import embed


class Embedding(nn.Embedding):
    """The learned rows are multiplied by `scale`, those of a batch's prompt embeddings come as they are.

    The first stage of a pipeline has the table, and the last one where it is the output head's, too (`tied`). Other
    stages have no row of it.
    """

    def __init__(self, vocab_size: int, width: int, scale: float = 1.0, *, context: ModelContext, tied: bool = False):
        super().__init__(vocab_size, width)
        self.scale, self.stages = scale, context.stages
        if not (self.stages.is_first or (tied and self.stages.is_last)):
            self.weight = nn.Parameter(self.weight.detach()[:0])

    def cut(self, weight: Tensor) -> Tensor:
        """Returns this rank's part of the whole weight."""
        return weight[: len(self.weight)]

    def forward(
        self,
        token_ids: Tensor,
        batch: ForwardBatch,
        position_weight: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Embeds token_ids [R] -> [R, width]; ids from vocab_size on stand for the batch's prompt embeddings. Adds the
        rows of `position_weight` [P, width] at the batch's positions. On later stages the values are any.
        `dtype`: of the result, the weight's by default."""
        if not self.stages.is_first:
            return self.weight.new_empty(len(token_ids), self.embedding_dim, dtype=dtype)
        rows, index = batch.prompt_embeds or (None, None)
        return embed(token_ids, self.weight, rows, index, self.scale, batch.positions, position_weight, dtype)
