"""Token embeddings, some of whose rows come from elsewhere: images' features, tuned prompts."""

from __future__ import annotations

from torch import Tensor, nn

from vlm.layers.forward_batch import ForwardBatch
from vlm.ops.embed import embed


class Embedding(nn.Embedding):
    """The learned rows are multiplied by `scale`, those of a batch's prompt embeddings come as they are."""

    def __init__(self, vocab_size: int, width: int, scale: float = 1.0):
        super().__init__(vocab_size, width)
        self.scale = scale

    def forward(self, token_ids: Tensor, batch: ForwardBatch) -> Tensor:
        """Embeds token_ids [R] -> [R, width]; ids from vocab_size on stand for the batch's prompt embeddings."""
        rows, index = batch.prompt_embeds or (None, None)
        return embed(token_ids, self.weight, rows, index, self.scale)
