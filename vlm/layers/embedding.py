"""Token embeddings, some of whose rows come from elsewhere: images' features, tuned prompts."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from vlm.ops.embed import embed


class Virtual(NamedTuple):
    """What stands for the embeddings of a batch's ids beyond the vocabulary."""

    table: Tensor  # [n, hidden]
    at: Tensor  # [R] int32: each row's place in the table, any where its id is a token's


class Embedding(nn.Embedding):
    """The learned rows are multiplied by `scale`, virtual ones come as they are."""

    def __init__(self, vocab_size: int, width: int, scale: float = 1.0):
        super().__init__(vocab_size, width)
        self.scale = scale

    def forward(self, token_ids: Tensor, virtual: Virtual | None = None) -> Tensor:
        """token_ids [R]; virtual: None where no row is -> [R, width]"""
        table, at = (None, None) if virtual is None else virtual
        return embed(token_ids, self.weight, table, at, self.scale)
